"""txl evaluate in Python: lengths, splits, and what it refuses."""

import json
from pathlib import Path

import pytest

from tests.training.small_run import tiny_config
from txl_lightning.config import EvaluateConfig
from txl_lightning.errors import OptionError, UserError
from txl_lightning.evaluation.command import evaluate
from txl_lightning.training.run import train


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    train(tiny_config(tmp_path, "data.level=char"), tmp_path / "run")
    return str(tmp_path / "run/checkpoints/best.ckpt")


def test_a_longer_memory_changes_the_score_and_is_stated(tmp_path: Path, checkpoint: str) -> None:
    scores = []
    for mem_len in (0, 8, 40):
        (line,) = evaluate(EvaluateConfig(checkpoint, splits=["test"], mem_len=mem_len), tmp_path)
        result = json.loads((tmp_path / "evaluation.json").read_text())
        assert result["evaluation"]["mem_len"] == mem_len
        assert result["streams_start"] == "without context"
        assert f"memory {mem_len}, segments of 8, 2 streams" in line
        scores.append(result["test"]["nll"])
    assert len(set(scores)) == 3


def test_more_streams_score_fewer_tokens(tmp_path: Path, checkpoint: str) -> None:
    tokens = []
    for batch_size in (1, 5):
        evaluate(EvaluateConfig(checkpoint, splits=["valid"], batch_size=batch_size), tmp_path)
        tokens.append(json.loads((tmp_path / "evaluation.json").read_text())["valid"]["tokens"])
    assert tokens[0] > tokens[1]


def test_a_corpus_with_another_vocabulary_is_refused(tmp_path: Path, checkpoint: str) -> None:
    other = tmp_path / "other.txt"
    other.write_text("completely different letters: zyxwvq\n" * 40)
    with pytest.raises(UserError, match=r"the vocabulary of other.txt is not the checkpoint's"):
        evaluate(EvaluateConfig(checkpoint, data_path=str(other)), tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"splits": ["dev"]}, "splits=.*must be of train, valid, test"),
        ({"segment_len": 0}, "segment_len=0"),
        ({"mem_len": -3}, "^mem_len=-3"),
        ({"clamp_len": -2}, "clamp_len=-2"),
        ({"batch_size": 4000}, "batch_size=4000"),
    ],
)
def test_impossible_lengths_are_named(tmp_path: Path, checkpoint: str, options: dict, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        evaluate(EvaluateConfig(checkpoint, **options), tmp_path)
