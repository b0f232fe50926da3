"""Streaming averages of attention against the same averages taken directly, query by query."""

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from tests.model.tiny_model import random_stream, tiny_model
from txl_lightning.data.streams import Streams
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.errors import OptionError
from txl_lightning.evaluation.attention import (
    AttentionInputs,
    attention_inputs,
    attention_maps,
    attention_reach,
    text_attention,
)
from txl_lightning.model.attention import Attention
from txl_lightning.model.transformer_xl import TransformerXL

KINDS = {
    "relative": {},
    "same length": {"same_length": True},
    "zeros at the start": {"memory_start": "zeros", "same_length": True},
    "extended context": {"ext_len": 2},
    "no memory": {"mem_len": 0},
    "shaw, untied, pre-norm": {"encoding": "shaw", "table_len": 5, "pre_norm": True},
    "absolute": {"encoding": "absolute"},
    "no (d)": {"terms": "abc"},
}
SEGMENT, STREAMS = 3, 2
Logits = Callable[[int, Attention, AttentionInputs], torch.Tensor]


def read(model: TransformerXL, streams: Streams) -> Iterator[tuple[int, Attention, AttentionInputs, list[int]]]:
    """Yield layer, attention, inputs and the queries that count, of every segment."""
    memory, n_read, reach = None, 0, attention_reach(model.config, SEGMENT)
    for segment in (streams[i] for i in range(len(streams))):
        T, targets = segment.tokens.shape[1], segment.targets.shape[1]
        seen = min(n_read, model.config.mem_len)
        counted = [i for i in range(T - targets, T) if seen + i + 1 >= reach]
        recorded, memory = attention_inputs(model, segment.tokens, memory)
        for n, (attention, inputs) in enumerate(recorded):
            yield n, attention, inputs, counted
        n_read += max(0, T - model.config.ext_len)


@torch.no_grad()
def direct(model: TransformerXL, streams: Streams, logits: Logits) -> dict[str, np.ndarray]:
    """All queries' weights in memory, one dictionary of distances each; averaged at the end, as the words say."""
    queries: dict[tuple[int, int], list[tuple[dict[int, float], int]]] = {}
    for n, attention, inputs, counted in read(model, streams):
        weights = logits(n, attention, inputs).softmax(-1)
        M = inputs.memory_BMD.shape[1]
        for h, b, i in ((h, b, i) for h in range(weights.shape[0]) for b in range(weights.shape[1]) for i in counted):
            row = {M + i - j: float(weights[h, b, i, j]) for j in range(M + i + 1)}
            queries.setdefault((n, h), []).append((row, i))
    averages: dict[str, list] = {"rows": [], "entropy_bits": [], "mean_distance": [], "in_memory": []}
    for _, of_head in sorted(queries.items()):
        mean = {d: sum(row.get(d, 0.0) for row, _ in of_head) / len(of_head) for d in range(40)}
        near = [mean[d] for d in range(attention_reach(model.config, SEGMENT))]
        averages["rows"].append([x / sum(near) for x in near])
        entropies = [-sum(p * math.log2(p) for p in row.values() if p) for row, _ in of_head]
        averages["entropy_bits"].append(sum(entropies) / len(of_head))
        averages["in_memory"].append(sum(p for row, i in of_head for d, p in row.items() if d > i) / len(of_head))
        averages["mean_distance"].append(sum(d * p for d, p in mean.items()))
    return {name: np.array(values) for name, values in averages.items()} | {"queries": np.array(len(of_head))}


@pytest.mark.parametrize("kind", KINDS)
def test_streaming_sums_are_the_direct_average(kind: str) -> None:
    model = tiny_model(**KINDS[kind])
    streams = Streams(random_stream(1, 29)[0].numpy(), STREAMS, SEGMENT, model.config.ext_len)
    maps = attention_maps(model, streams)
    present = [term for term in "abd" if term in model.config.active_terms]
    assert list(maps.by_distance) == ["all", *present]
    for name in ("all", *present):
        terms = None if name == "all" else name
        expected = direct(model, streams, lambda n, attention, inputs, terms=terms: attention.logits(*inputs, terms))
        np.testing.assert_allclose(maps.by_distance[name], expected.pop("rows"), rtol=0, atol=1e-12)
        if name == "all":
            assert maps.queries == expected.pop("queries")
            assert maps.averages.keys() == expected.keys()
            for average, values in maps.averages.items():
                np.testing.assert_allclose(values, expected[average], rtol=0, atol=1e-12)


def test_no_query_that_sees_less_than_the_others_counts() -> None:
    """Streams of 13 targets: with a memory of 4 those after the fourth count; without memory, two of every three."""
    tokens = random_stream(1, 2 * 14)[0].numpy()
    for mem_len, same_length, queries in ((4, False, 2 * 9), (4, True, 2 * 10), (0, False, 2 * 8)):
        model = tiny_model(mem_len=mem_len, same_length=same_length)
        assert attention_maps(model, Streams(tokens, STREAMS, SEGMENT)).queries == queries


def test_queries_near_the_start_of_their_document_do_not_count() -> None:
    """Streams of 13 targets. With a memory of 4 a query sees 5 keys from the fifth token of its document on."""
    tokens = random_stream(1, 2 * 14)[0].numpy()
    tokens[[6, 14 + 1, 14 + 11]] = ~tokens[[6, 14 + 1, 14 + 11]]
    model = tiny_model(mem_len=4, memory_reset="document")
    maps = attention_maps(model, Streams(tokens, STREAMS, SEGMENT))
    assert maps.queries == (2 + 3) + (0 + 6 + 0)
    assert maps.by_distance["all"][:, :5].min() > 0
    tokens[1::2] = ~np.abs(tokens[1::2])
    with pytest.raises(OptionError, match="mem_len=4: must be shorter: no query sees 5 keys"):
        attention_maps(model, Streams(tokens, STREAMS, SEGMENT))


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"same_length": True}, {"mem_len": 0}, {"ext_len": 2}])
def test_a_piece_of_text_has_the_attention_it_has_in_a_stream(options: dict) -> None:
    """The stream is cut so that one of its segments is the piece."""
    model, stream = tiny_model(**options), random_stream(1, 60)
    M, n_targets, position = model.config.mem_len, 3, 37
    piece = text_attention(model, stream[0].numpy(), LETTERS, position, n_targets, SEGMENT + 1)
    C = M or 1
    expected = LETTERS.decode(stream[0, 36 - C : 36]), LETTERS.decode(stream[0, 37:40])
    assert ("".join(piece.context), "".join(piece.targets)) == expected
    memory, plain = None, model.with_lengths(ext_len=0)
    for start in range(0, 36, 4) if M else []:
        _, memory = plain(stream[:, start : start + 4], memory)
    seen, _ = attention_inputs(plain, stream[:, 36 if M else 35 : 39], memory)
    assert len(piece.weights) == model.config.n_layer * model.config.n_head
    for head, weights in piece.weights.items():
        n, h = (int(number) - 1 for number in head.split(":"))
        attention, inputs = seen[n]
        expected = attention.logits(*inputs)[h, 0].softmax(-1)[-3:, :C]
        np.testing.assert_allclose(weights, expected, rtol=0, atol=1e-12)
        assert (weights[2, :2] == 0).all() == bool(options.get("same_length"))


LETTERS = Vocabulary("char", tuple("abcdefghijk"))
