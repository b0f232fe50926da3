"""What reading a checkpoint for evaluation notices: weights that are not finite, a corpus that has changed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.training.small_run import tiny_config
from txl_lightning.config.schemas import from_plain, plain
from txl_lightning.errors import UserError
from txl_lightning.evaluation.trained import (
    checkpoint_corpus,
    load_trained,
)
from txl_lightning.training.module import LanguageModelModule
from txl_lightning.training.run import train


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    train(
        tiny_config(tmp_path, "trainer.max_steps=2", "data.level=char", "memory=off"),
        tmp_path / "run",
    )
    return tmp_path / "run/checkpoints/last.ckpt"


def test_a_changed_corpus_is_reported(checkpoint, tmp_path, capsys):
    trained = load_trained(checkpoint)
    text = tmp_path / "text.txt"
    words = f"checkpoint={checkpoint} was trained on another text than text.txt has now: parts of its validation and"
    for reverse, data_path, warned in (
        (False, None, False),
        (True, None, True),
        (True, str(text), False),
    ):
        text.write_text(text.read_text()[:: -1 if reverse else 1])  # the same characters
        capsys.readouterr()
        checkpoint_corpus(trained, checkpoint, data_path=data_path)
        assert (words in capsys.readouterr().err) == warned
    text.write_text("completely different letters: zyxwvq\n" * 40)
    with pytest.raises(
        UserError, match=r"checkpoint=.*: was trained with another vocabulary than text.txt has"
    ):
        checkpoint_corpus(trained, checkpoint)


def test_lightning_opens_a_checkpoint_as_load_trained_does(checkpoint):
    ours = load_trained(checkpoint)
    module = LanguageModelModule.load_from_checkpoint(str(checkpoint), map_location="cpu")
    assert module.config == ours.config
    assert all(part.training for part in module.modules())
    states = (module.model.state_dict(), ours.model.state_dict())
    torch.testing.assert_close(*states, rtol=0, atol=0)
    lengths = module.evaluation_lengths
    assert (lengths.window, lengths.segment_len) == (8, 2)  # windows: it has no memory


@pytest.mark.parametrize(
    "text",
    [
        "${oc.env:HOME}",
        r"\${x}",
        r"\\${x}",
        "${",
        "$${a}",
        "'${a:${b}}'",
        "a${b}c\\",
        "\\\\ ${b} \\",
        "§",
    ],
)
def test_values_of_a_config_are_literal(tmp_path, text):
    config = tiny_config(tmp_path)
    config.data.document_start = text
    assert from_plain(plain(config)) == config
    assert from_plain(plain(from_plain(plain(config)))) == config
