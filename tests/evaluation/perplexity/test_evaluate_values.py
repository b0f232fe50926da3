"""Every value of `evaluation.json`, computed again from the losses of single tokens."""

import math
import time
from pathlib import Path

import numpy as np
import pytest

from tests.evaluation.perplexity.scored import result
from tests.evaluation.small_runs import SmallRuns
from txl_lightning.data.corpus import Corpus, load_corpus
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.evaluation.losses import TokenLosses
from txl_lightning.evaluation.protocols import SplitScores
from txl_lightning.runs.trained import load_trained


def by_blocks(nll: np.ndarray, positions: np.ndarray, length: int = 20) -> tuple[float, int]:
    """Standard error of the mean over blocks of the text, and their number."""
    blocks, deviations_P = positions // length, nll.astype(float) - nll.mean(dtype=float)
    of_blocks = [float(deviations_P[blocks == u].sum()) for u in np.unique(blocks)]
    U = len(of_blocks)
    return math.sqrt(U / (U - 1) * sum(d * d for d in of_blocks)) / len(nll), U


def losses(path: Path) -> tuple[np.ndarray, np.ndarray]:
    with np.load(path) as file:
        return file["nll"], file["positions"]


def test_values_of_a_split_are_those_of_its_tokens(runs: SmallRuns, tmp_path: Path) -> None:
    started = time.perf_counter()
    ours = result(runs, "characters", tmp_path, losses=True, batch_size=3, max_segments=2)
    elapsed = time.perf_counter() - started
    corpus = load_corpus(load_trained(runs.checkpoint("characters")).config.data)
    assert (ours["checkpoint"], ours["step"], ours["protocol"]) == (runs.checkpoint("characters"), 2, "carried")
    assert ours["corpus"] == {"name": "text.txt", "sha256": corpus.checksum, "level": "char"}
    lengths = {"protocol": "carried", "mem_len": 8, "ext_len": 0, "same_length": False, "clamp_len": -1}
    lengths |= {"segment_len": 8, "batch_size": 3, "max_segments": 2, "cached": True, "precision": "32-true"}
    assert (ours["evaluation"], ours["streams_start"]) == (lengths, "without context")
    test, (nll, positions) = ours["test"], losses(tmp_path / "losses_test.npz")
    assert test["tokens"] == len(nll) == 3 * 2 * 8
    assert test["nll"] == pytest.approx(sum(nll.astype(float)) / len(nll), rel=1e-9)
    assert test["bpc"] == test["bpb"] == pytest.approx(test["nll"] * math.log2(math.e), rel=1e-9)
    assert test["bytes"] == len(nll)  # of ASCII
    error, n_blocks = by_blocks(nll, positions)
    found = test["standard_error"]
    assert (found["nll"], found["bpc"]) == pytest.approx((error, error / math.log(2)), rel=1e-6)
    assert (found["over"], found["units"]) == ("blocks of 20 tokens", n_blocks)
    n_tokens, left_out = len(corpus.splits["test"]), test["left_out"]
    assert (left_out["first_of_streams"], left_out["trimmed"]) == (3, n_tokens % 3)
    assert sum(left_out.values()) + len(nll) == n_tokens
    assert 0 < test["seconds"] <= elapsed + 0.01


def test_bytes_are_those_of_the_scored_symbols() -> None:
    vocabulary = Vocabulary("char", ("a", "é", "日"))
    corpus = Corpus("text", {"test": np.array([0, 2, 1, 1, 0, 2])}, vocabulary, "")
    scored = TokenLosses(np.array([1.0, 2.0, 4.0]), np.array([1, 2, 4]), {}, 0.126)
    found = SplitScores(corpus, "test", 2).values(scored)
    assert (found["bytes"], found["tokens"], found["seconds"]) == (3 + 2 + 1, 3, 0.13)
    assert found["bpb"] == pytest.approx((1 + 2 + 4) / math.log(2) / 6)
    assert found["bpc"] == pytest.approx((1 + 2 + 4) / math.log(2) / 3)
    assert found["standard_error"]["units"] == 3
    words = Corpus("text", {"test": np.array([0, 1])}, Vocabulary("word", ("a", "b")), "")
    found = SplitScores(words, "test", 2).values(TokenLosses(np.array([2.0]), np.array([1]), {}, 0.0))
    assert (found["bytes"], found["ppl"]) == (None, pytest.approx(math.exp(2)))
    assert "bpb" not in found


def test_differences_are_paired_by_token_and_worse_minus_better() -> None:
    random, positions = np.random.default_rng(0), np.arange(90)
    text = random.normal(0, 1, 90)
    worse, better = (TokenLosses(2 + text + random.normal(x, 0.1, 90), positions, {}, 1.0) for x in (0.3, 0.0))
    words = SplitScores(Corpus("text", {}, Vocabulary("word", ("a",)), ""), "test", 10)
    error, _ = by_blocks(worse.nll - better.nll, positions, 10)
    found = words.difference(worse, better)
    assert found["ppl"] == pytest.approx(math.exp(worse.nll.mean()) - math.exp(better.nll.mean()))
    assert found["standard_error"]["ppl"] == pytest.approx(error * math.exp(better.nll.mean()))
    assert words.difference(worse, TokenLosses(better.nll[1:], positions[1:], {}, 1.0)) is None
