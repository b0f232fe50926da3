"""Values of `evaluation.json`, computed again from the losses of single tokens, and the lines that are printed."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.evaluation.scored import by_blocks, losses, result
from tests.evaluation.small_runs import SmallRuns
from txl_lightning.data.corpus import Corpus, load_corpus
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.evaluation.losses import TokenLosses
from txl_lightning.evaluation.perplexity import LINE_WIDTH, loss_values, score_line
from txl_lightning.evaluation.trained import load_trained


def values_of(
    vocabulary: Vocabulary, tokens: list[int], nll: list[float], positions: list[int]
) -> dict[str, Any]:
    """Return the values of losses at positions of a text."""
    corpus = Corpus(
        "text",
        {"test": np.array(tokens)},
        vocabulary,
        "",
    )
    losses = TokenLosses(
        np.array(nll),
        np.array(positions),
        {},
        0.126,
    )
    return loss_values(losses, corpus, "test", 2)


def test_values_of_a_split_are_those_of_its_tokens(runs: SmallRuns, tmp_path: Path) -> None:
    found = result(runs, "characters", tmp_path, losses=True, batch_size=3, max_segments=2)
    corpus = load_corpus(load_trained(runs.checkpoint("characters")).config.data)
    facts = {"name": "text.txt", "sha256": corpus.checksum, "level": "char"}
    assert found["corpus"] == facts
    assert found["streams_start"] == "without context"
    assert found["evaluation"] == {
        "protocol": "carried",
        "variant": None,
        "mem_len": 8,
        "ext_len": 0,
        "same_length": False,
        "clamp_len": -1,
        "segment_len": 8,
        "batch_size": 3,
        "max_segments": 2,
        "cached": True,
        "precision": "32-true",
    }
    test = found["test"]
    nll, positions = losses(tmp_path / "losses_test.npz")
    assert test["tokens"] == test["bytes"] == len(nll) == 3 * 2 * 8
    assert test["nll"] == pytest.approx(nll.mean(dtype=float), rel=1e-9)
    assert test["bpc"] == test["bpb"]
    assert test["bpc"] == pytest.approx(test["nll"] / math.log(2), rel=1e-9)
    error, n_blocks = by_blocks(nll, positions)
    assert test["standard_error"] == {
        "nll": pytest.approx(error, rel=1e-6),
        "bpc": pytest.approx(error / math.log(2), rel=1e-6),
        "over": "blocks of 20 tokens",
        "units": n_blocks,
    }
    n_tokens = len(corpus.splits["test"])
    left_out = test["left_out"]
    assert (left_out["first_of_streams"], left_out["trimmed"]) == (3, n_tokens % 3)
    assert sum(left_out.values()) + len(nll) == n_tokens


def test_bytes_are_those_of_the_scored_symbols() -> None:
    vocabulary = Vocabulary("char", ("a", "é", "日"))
    found = values_of(
        vocabulary,
        [0, 2, 1, 1, 0, 2],
        [1.0, 2.0, 4.0],
        [1, 2, 4],
    )
    assert (found["bytes"], found["tokens"]) == (3 + 2 + 1, 3)
    assert found["bpb"] == pytest.approx((1 + 2 + 4) / math.log(2) / 6)
    assert found["bpc"] == pytest.approx((1 + 2 + 4) / math.log(2) / 3)
    assert found["standard_error"]["units"] == 3


def test_words_have_no_bytes() -> None:
    found = values_of(
        Vocabulary("word", ("a", "b")),
        [0, 1],
        [2.0],
        [1],
    )
    assert found["bytes"] is None
    assert found["ppl"] == pytest.approx(math.exp(2))
    assert "bpb" not in found


@pytest.mark.parametrize("perplexity", [9.9, 123.5678, 12345.678, 1e30])
def test_a_line_names_its_units_and_fits_on_a_terminal(perplexity: float) -> None:
    values: dict[str, Any] = {
        "attention_length": 16384,
        "ppl": perplexity,
        "bpb": 1.23456,
        "standard_error": {"ppl": 12.3456},
    }
    init = {"ppl": 2 * perplexity}
    line = score_line("valid", {**values, "init": init})
    if perplexity == 123.5678:
        expected = "valid: perplexity 123.57 ± 12.35, 1.2346 bits per byte"
        assert line == f"{expected} (at training lengths: 247.14)"
    best = score_line("valid", {"selected": {"init": init, "best": values}})
    assert best.startswith("valid, attention length 16384: perplexity ")
    for one in (line, best):
        assert len(one) <= LINE_WIDTH
        assert "(at training lengths: " in one
