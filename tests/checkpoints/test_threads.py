"""`trainer.num_threads=null`: chosen by the size of the model, recorded, kept on resuming."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from tests.training.small_run import tiny_config
from txl_lightning.errors import cores
from txl_lightning.evaluation import hardware
from txl_lightning.evaluation.hardware import set_threads
from txl_lightning.evaluation.trained import load_trained, read_checkpoint
from txl_lightning.training.run import train


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def train_tiny(tmp_path: Path, *overrides: str) -> Path:
    """Train four steps and return the last checkpoint."""
    train(
        tiny_config(tmp_path, "trainer.num_threads=null", "trainer.max_steps=4", *overrides),
        tmp_path / "run",
    )
    return tmp_path / "run/checkpoints/last.ckpt"


def test_the_number_is_printed_recorded_and_kept(tmp_path, capsys, monkeypatch):
    last = train_tiny(tmp_path)
    assert f", 1 of {cores()} CPU threads" in capsys.readouterr().err
    assert OmegaConf.load(tmp_path / "run/config.yaml").trainer.num_threads == 1
    assert read_checkpoint(last).config.trainer.num_threads == 1
    monkeypatch.setattr(hardware, "FLOPS_PER_THREAD", 1)
    train_tiny(tmp_path, "resume=auto", "trainer.max_steps=5")
    assert f", 1 of {cores()} CPU threads" in capsys.readouterr().err


def test_measurements_use_the_threads_that_training_pays_for(tmp_path, monkeypatch):
    trained = load_trained(train_tiny(tmp_path))
    default = hardware.FLOPS_PER_THREAD
    for given, models, flops, expected in (
        (None, (), default, 2),  # models from elsewhere keep torch's default
        (None, (trained,), default, 1),
        (None, (trained,), 1, 2),
        (3, (trained,), default, 3),
    ):
        torch.set_num_threads(2)
        monkeypatch.setattr(hardware, "FLOPS_PER_THREAD", flops)
        set_threads(given, *models)
        assert torch.get_num_threads() == expected
