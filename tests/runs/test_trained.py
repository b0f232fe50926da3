"""What reading a checkpoint for evaluation notices: weights that are not finite, a corpus that has changed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.training.small_run import tiny_config
from txl_lightning.errors import OptionError, UserError
from txl_lightning.runs.storage import read_file, write_checkpoint
from txl_lightning.runs.trained import checkpoint_corpus, load_trained
from txl_lightning.training.run import train


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    train(tiny_config(tmp_path, "trainer.max_steps=2", "data.level=char"), tmp_path / "run")
    return tmp_path / "run/checkpoints/last.ckpt"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_named(checkpoint: Path, value: float) -> None:
    contents = read_file(checkpoint)
    name = next(name for name in contents["state_dict"] if name.endswith("output.weight"))
    contents["state_dict"][name][0, 0] = torch.tensor(value)
    write_checkpoint(contents, checkpoint)
    words = rf"checkpoint={checkpoint}: has weights that are not finite \({name.removeprefix('model.')}\)"
    with pytest.raises(OptionError, match=words):
        load_trained(checkpoint)


def test_a_corpus_that_has_changed_since_training_is_reported(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = load_trained(checkpoint)
    capsys.readouterr()
    before = checkpoint_corpus(trained, checkpoint)
    assert before.checksum == trained.corpus
    assert capsys.readouterr().err == ""
    text = tmp_path / "text.txt"
    text.write_text(text.read_text()[::-1])  # the same characters
    after = checkpoint_corpus(trained, checkpoint)
    assert after.vocabulary == before.vocabulary
    words = f"checkpoint={checkpoint} was trained on another text than text.txt has now: parts of its validation and"
    assert words in capsys.readouterr().err
    checkpoint_corpus(trained, checkpoint, data_path=str(text))  # another text on purpose
    assert capsys.readouterr().err == ""


def test_a_checkpoint_of_the_corpus_that_went_says_which_version_has_it(checkpoint: Path, tmp_path: Path) -> None:
    contents = read_file(checkpoint)
    contents["txl_lightning"]["config"]["data"]["name"] = "python-3.11"
    write_checkpoint(contents, checkpoint)
    with pytest.raises(UserError, match=f"corpus of {checkpoint}: data=python-3.11: is in version 0.3.0 only"):
        checkpoint_corpus(load_trained(checkpoint), checkpoint)
    assert checkpoint_corpus(load_trained(checkpoint), checkpoint, str(tmp_path / "text.txt")).name == "text.txt"
