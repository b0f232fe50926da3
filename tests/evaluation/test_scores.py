"""Values of `evaluation.json`, computed again from the losses of single tokens, and the lines that are printed."""

import math
from pathlib import Path

import numpy as np
import pytest

from tests.evaluation.scored import by_blocks, losses, result
from tests.evaluation.small_runs import SmallRuns
from txl_lightning.data.corpus import Corpus, load_corpus
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.evaluation.losses import TokenLosses
from txl_lightning.evaluation.scores import LINE_WIDTH, SplitScores, notes, score_line
from txl_lightning.evaluation.trained import load_trained


def token_losses(nll: list[float], positions: list[int]) -> TokenLosses:
    return TokenLosses(np.array(nll), np.array(positions), {}, 0.126)


def test_values_of_a_split_are_those_of_its_tokens(runs: SmallRuns, tmp_path: Path) -> None:
    found = result(runs, "characters", tmp_path, losses=True, batch_size=3, max_segments=2)
    corpus = load_corpus(load_trained(runs.checkpoint("characters")).config.data)
    assert (found["checkpoint"], found["step"]) == (runs.checkpoint("characters"), 2)
    assert found["corpus"] == {"name": "text.txt", "sha256": corpus.checksum, "level": "char"}
    assert found["streams_start"] == "without context"
    assert found["evaluation"] == {
        "protocol": "carried", "mem_len": 8, "ext_len": 0, "same_length": False, "clamp_len": -1, "segment_len": 8,
        "batch_size": 3, "max_segments": 2, "cached": True, "precision": "32-true",
    }  # fmt: skip
    test = found["test"]
    nll, positions = losses(tmp_path / "losses_test.npz")
    assert test["tokens"] == test["bytes"] == len(nll) == 3 * 2 * 8
    assert test["nll"] == pytest.approx(sum(nll.astype(float)) / len(nll), rel=1e-9)
    assert test["bpc"] == test["bpb"] == pytest.approx(test["nll"] / math.log(2), rel=1e-9)
    error, n_blocks = by_blocks(nll, positions)
    assert test["standard_error"]["nll"] == pytest.approx(error, rel=1e-6)
    assert test["standard_error"]["bpc"] == pytest.approx(error / math.log(2), rel=1e-6)
    assert test["standard_error"]["over"] == "blocks of 20 tokens"
    assert test["standard_error"]["units"] == n_blocks
    n_tokens = len(corpus.splits["test"])
    assert test["left_out"]["first_of_streams"] == 3
    assert test["left_out"]["trimmed"] == n_tokens % 3
    assert sum(test["left_out"].values()) + len(nll) == n_tokens


def test_bytes_are_those_of_the_scored_symbols() -> None:
    vocabulary = Vocabulary("char", ("a", "é", "日"))
    corpus = Corpus("text", {"test": np.array([0, 2, 1, 1, 0, 2])}, vocabulary, "")
    found = SplitScores(corpus, "test", 2).values(token_losses([1.0, 2.0, 4.0], [1, 2, 4]))
    assert (found["bytes"], found["tokens"], found["seconds"]) == (3 + 2 + 1, 3, 0.13)
    assert found["bpb"] == pytest.approx((1 + 2 + 4) / math.log(2) / 6)
    assert found["bpc"] == pytest.approx((1 + 2 + 4) / math.log(2) / 3)
    assert found["standard_error"]["units"] == 3


def test_words_have_no_bytes() -> None:
    corpus = Corpus("text", {"test": np.array([0, 1])}, Vocabulary("word", ("a", "b")), "")
    found = SplitScores(corpus, "test", 2).values(token_losses([2.0], [1]))
    assert (found["bytes"], found["ppl"]) == (None, pytest.approx(math.exp(2)))
    assert "bpb" not in found


def test_differences_are_paired_by_token_and_worse_minus_better() -> None:
    random = np.random.default_rng(0)
    positions = np.arange(90)
    text = random.normal(0, 1, 90)
    worse = TokenLosses(2 + text + random.normal(0.3, 0.1, 90), positions, {}, 1.0)
    better = TokenLosses(2 + text + random.normal(0.0, 0.1, 90), positions, {}, 1.0)
    scores = SplitScores(Corpus("text", {}, Vocabulary("word", ("a",)), ""), "test", 10)
    found = scores.difference(worse, better)
    error, _ = by_blocks(worse.nll - better.nll, positions, 10)
    assert found is not None
    assert found["ppl"] == pytest.approx(math.exp(worse.nll.mean()) - math.exp(better.nll.mean()))
    assert found["standard_error"]["ppl"] == pytest.approx(error * math.exp(better.nll.mean()))
    assert scores.difference(worse, TokenLosses(better.nll[1:], positions[1:], {}, 1.0)) is None


def test_a_line_names_its_units_and_fits_on_a_terminal() -> None:
    values = {"ppl": 123.5678, "bpb": 1.23456, "ppl_word": 2345.789, "init": {"ppl": 234.6789}}
    values["standard_error"] = {"ppl": 12.3456}
    line = score_line("valid", values)
    expected = "valid: perplexity 123.57 ± 12.35, 1.2346 bits per byte, 2345.8 per word"
    assert line == f"{expected} (training's lengths: 234.68)"
    corpus = Corpus("a corpus with a long name", {"test": np.zeros(20)}, Vocabulary("byte"), "", unknown={"test": 0.5})
    values |= {"tokens": 12345678, "left_out": {"first_of_streams": 10, "trimmed": 3, "max_segments": 1234567}}
    values["standard_error"]["over"] = "blocks of 1,000 tokens"
    settings = {"protocol": "carried", "mem_len": 640, "segment_len": 128, "clamp_len": 400, "precision": "bf16-mixed"}
    lines = notes({"test": values}, corpus, settings)
    assert max(len(one) for one in [*lines, line]) <= LINE_WIDTH
    text = " ".join(lines)
    assert "12,345,678 tokens scored; left out: 10 at the start of streams, 3 trimmed, 1,234,567 after" in text
    assert "± is a standard error over blocks of 1,000 tokens; protocol carried, mem_len 640," in text
