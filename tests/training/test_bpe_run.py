"""Runs at level bpe: every command on their checkpoints, and bits per byte."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.data.test_byte_pairs import TEXT
from tests.training.small_run import evaluated, train_tiny
from txl_lightning.data.corpus import load_corpus
from txl_lightning.data.subwords import train_byte_pairs
from txl_lightning.evaluation.trained import load_trained

BEST = "run/checkpoints/best.ckpt"
SHORT = ("trainer.max_steps=3", "trainer.val_every_n_steps=3", "memory=on")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `text.txt` and a run with a tokenizer file, which is deleted with all prepared tokens."""
    folder = tmp_path_factory.mktemp("bpe")
    (folder / "text.txt").write_text(TEXT)
    (folder / "tokenizer.json").write_text(train_byte_pairs([TEXT], 300))
    options = ("data.level=bpe", f"data.tokenizer={folder / 'tokenizer.json'}")
    train_tiny(folder, *SHORT, *options)
    (folder / "tokenizer.json").unlink()
    shutil.rmtree(folder / "cache")
    return folder


def test_a_checkpoint_needs_no_tokenizer_file(run, tmp_path):
    metrics = json.loads((run / "run/metrics.json").read_text())
    result = evaluated(run / BEST, tmp_path)["test"]
    assert result["bpb"] == pytest.approx(metrics["test/bpb"], rel=1e-6)
    trained = load_trained(run / BEST)
    tokens = load_corpus(trained.config.data, trained.vocabulary).splits["test"]
    targets = np.delete(tokens, [0, len(tokens) // 2])[: result["tokens"]]  # of two streams
    n_bytes = len(trained.vocabulary.decode_bytes(targets))
    bits = result["nll"] * result["tokens"] / math.log(2)
    assert result["bytes"] == n_bytes
    assert result["bpb"] == pytest.approx(bits / n_bytes)
    assert (run / "run/tokenizer.json").read_text() == trained.vocabulary.tokenizer


def test_a_run_resumes_without_the_tokenizer_file(run):
    options = ("data.level=bpe", f"data.tokenizer={run / 'tokenizer.json'}", "trainer.max_steps=4")
    last = f"resume={run / 'run/checkpoints/last.ckpt'}"
    assert train_tiny(run, *SHORT, *options, last, name="resumed")["steps"] == 4
