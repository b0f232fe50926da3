"""txl attention: averages against every query taken alone, the files and figures, what it refuses."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.evaluation.kept_figures import Figures
from tests.evaluation.small_runs import SmallRuns
from tests.model.tiny_model import random_stream, tiny_model
from txl_lightning.config.schemas import LoggerConfig
from txl_lightning.data.corpus import load_corpus
from txl_lightning.data.streams import Streams
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.errors import OptionError
from txl_lightning.evaluation.attention import (
    TextAttention,
    attention_inputs,
    attention_maps,
    run,
)
from txl_lightning.evaluation.attention_figures import draw_text, printable
from txl_lightning.evaluation.options import AttentionOptions
from txl_lightning.evaluation.trained import load_trained
from txl_lightning.model.transformer_xl import TransformerXL

SEGMENT_LEN = 3
MOST_DISTANCES = 20
KINDS: dict[str, dict[str, Any]] = {
    "relative": {},
    "same length": {"same_length": True},
    "zeros at the start": {"memory_start": "zeros", "same_length": True},
    "shaw, untied, pre-norm": {"encoding": "shaw", "table_len": 5, "pre_norm": True},
    "absolute": {"encoding": "absolute"},
    "no (d)": {"terms": "abc"},
}


def attention_of_queries(model: TransformerXL, streams: Streams, terms: str | None) -> np.ndarray:
    """Return the attention of every counted query by distance, [N·H, queries, distances]."""
    mem_len = model.config.mem_len
    reach = model.config.attention_len or mem_len + 1
    rows: list[list[np.ndarray]] = [[] for _ in range(model.config.n_layer)]
    memory = None
    n_read = 0
    for index in range(len(streams)):
        recorded, memory = attention_inputs(model, streams[index].tokens, memory)
        for layer, (attention, inputs) in enumerate(recorded):
            weights_HBTK = (
                attention.logits(
                    *inputs,
                    terms,
                )
                .softmax(-1)
                .numpy()
            )
            H, B, T, _ = weights_HBTK.shape
            for stream, query in product(range(B), range(T)):
                if min(n_read, mem_len) + query + 1 < reach:
                    continue
                n_keys = inputs.memory_BMD.shape[1] + query + 1
                distances_HS = np.zeros((H, MOST_DISTANCES))
                weights_HK = weights_HBTK[:, stream, query, :n_keys]
                distances_HS[:, :n_keys] = weights_HK[:, ::-1]
                rows[layer].append(distances_HS)
        n_read += SEGMENT_LEN
    return np.concatenate(
        [
            np.stack(
                of_layer,
                axis=1,
            )
            for of_layer in rows
        ]
    )


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_streaming_sums_are_the_direct_average(kind: str) -> None:
    model = tiny_model(**{"mem_len": 4, **KINDS[kind]})
    streams = Streams(
        random_stream(1, 29)[0].numpy(),
        2,
        SEGMENT_LEN,
    )
    maps = attention_maps(model, streams)
    terms = [term for term in "abd" if term in model.config.active_terms]
    assert list(maps.by_distance) == ["all", *terms]
    reach = model.config.attention_len or model.config.mem_len + 1
    for term in ("all", *terms):
        queries = attention_of_queries(model, streams, None if term == "all" else term)
        near = queries.mean(axis=1)[:, :reach]
        expected = near / near.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(
            maps.by_distance[term],
            expected,
            rtol=0,
            atol=1e-12,
        )
        if term == "all":
            assert maps.queries == queries.shape[1]
            distances = (queries @ np.arange(MOST_DISTANCES)).mean(axis=1)
            found = maps.mean_distance_NH.ravel()
            np.testing.assert_allclose(found, distances, rtol=0, atol=1e-12)


def test_queries_near_the_start_of_their_document_do_not_count() -> None:
    """Streams of 13 targets. With a memory of 4 a query sees 5 keys from the fifth token of its document on."""
    tokens = random_stream(1, 2 * 14)[0].numpy()
    for start in (6, 14 + 1, 14 + 11):
        tokens[start] = ~tokens[start]
    model = tiny_model(mem_len=4, memory_reset="document")
    maps = attention_maps(model, Streams(tokens, 2, SEGMENT_LEN))
    assert maps.queries == (2 + 3) + (0 + 6 + 0)
    assert maps.by_distance["all"][:, :5].min() > 0
    tokens[1::2] = ~np.abs(tokens[1::2])
    with pytest.raises(OptionError, match="mem_len=4: must be shorter: no query sees 5 keys"):
        attention_maps(model, Streams(tokens, 2, SEGMENT_LEN))


@torch.no_grad()
@pytest.mark.parametrize("same_length", [False, True])
def test_the_piece_of_text_is_the_middle_segment_of_the_first_stream(same_length: bool) -> None:
    model = tiny_model(mem_len=6, same_length=same_length)
    tokens = random_stream(1, 122)[0]
    maps = attention_maps(model, Streams(tokens.numpy(), 2, 4))  # 15 segments each
    piece = maps.text
    assert piece.position == 7 * 4 + 1
    assert piece.context.tolist() == tokens[28 - 6 : 28].tolist()
    assert piece.targets.tolist() == tokens[29:33].tolist()
    memory = None
    for start in range(0, 32, 4):
        recorded, memory = attention_inputs(
            model,
            tokens[None, start : start + 4],
            memory,
        )
    for layer, (attention, inputs) in enumerate(recorded):
        weights_HQK = attention.logits(*inputs)[:, 0].softmax(-1)
        np.testing.assert_allclose(
            piece.weights_NHQC[layer], weights_HQK[:, :, :6], rtol=0, atol=1e-12
        )


def test_attention_beyond_the_columns_that_are_drawn(tmp_path: Path, drawn: Figures) -> None:
    """The marked 20 % of the tokens may lie before the nearest 256: such a panel stays white."""
    weights_NHQC = np.full((1, 2, 3, 400), 1e-6)
    weights_NHQC[0, 0, :, :100] = 0.01
    weights_NHQC[0, 1, :, -1] = 1.0
    tokens = np.zeros(400, dtype=np.int64)
    text = TextAttention(1000, weights_NHQC, tokens[:3], tokens)
    vocabulary = Vocabulary("char", ("a",))
    for heads in ([(0, 0)], [(0, 0), (0, 1)]):
        draw_text(tmp_path / "text", text, vocabulary, heads)
        assert drawn["text.svg"].axes[0].get_images()[0].get_array().mask.all()


def written(runs: SmallRuns, kind: str, directory: Path, **given: Any) -> dict[str, Any]:
    """Return `attention.json`."""
    checkpoint = runs.checkpoint(kind)
    run(AttentionOptions(checkpoint, num_threads=1, logger=LoggerConfig(), **given), directory)
    return json.loads((directory / "attention.json").read_text())


def test_the_maps_of_every_head(runs: SmallRuns, tmp_path: Path, drawn: Figures) -> None:
    lengths = {"mem_len": 6, "same_length": False}
    found = written(runs, "relative", tmp_path, **lengths)
    trained = load_trained(runs.checkpoint("relative"))
    corpus = load_corpus(trained.config.data)
    model: Any = trained.model.with_lengths(**lengths)
    maps = attention_maps(model, Streams(corpus.splits["valid"], 2, 8))
    with np.load(tmp_path / "attention.npz") as file:
        assert sorted(file) == ["a", "all", "b", "d"]
        for name, rows in maps.by_distance.items():
            np.testing.assert_allclose(file[name], rows, rtol=1e-6)
    assert (found["queries"], found["corpus"]) == (maps.queries, corpus.facts())
    np.testing.assert_allclose(found["mean_distance"], maps.mean_distance_NH)
    assert found["evaluation"]["mem_len"] == 6
    for figure, term in (("by_distance", "all"), ("terms", "a")):
        shown = drawn[f"{figure}.svg"].axes[0].get_images()[0].get_array()
        oldest_first = maps.by_distance[term][:, ::-1]
        np.testing.assert_allclose(
            shown,
            np.maximum(oldest_first, 0.1 / 7),
            rtol=1e-6,
        )
    panels = [axes.get_title() for axes in drawn["text.svg"].axes[:-1]]
    heads = [name.split(":") for name in found["text"]["heads"]]
    assert panels == [f"layer {layer}, head {head}" for layer, head in heads]


def test_tokens_are_shown_in_glyphs_of_the_font() -> None:
    symbols = (" a\n", "\x00日", "a" * 20)
    vocabulary = Vocabulary("char", symbols)
    shown = [printable(vocabulary, token) for token in range(3)]
    assert shown == ["␣a\\n", "\\x00\\u65e5", "a" * 13 + "…"]
