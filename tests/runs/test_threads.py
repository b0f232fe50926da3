"""`trainer.num_threads=null`: chosen by the size of the model, recorded, kept on resuming."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from tests.training.small_run import tiny_config
from txl_lightning.config.schemas import Config
from txl_lightning.errors import cores
from txl_lightning.runs import threads_and_precision as threads
from txl_lightning.runs.threads_and_precision import set_threads
from txl_lightning.runs.trained import load_trained, read_checkpoint
from txl_lightning.training import run
from txl_lightning.training.run import train


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def train_tiny(tmp_path: Path) -> Path:
    """Train four steps and return the last checkpoint."""
    train(config(tmp_path), tmp_path / "run")
    return tmp_path / "run/checkpoints/last.ckpt"


def config(tmp_path: Path, *overrides: str) -> Config:
    return tiny_config(tmp_path, "trainer.num_threads=null", "trainer.max_steps=4", *overrides)


def test_the_number_is_printed_recorded_and_kept_by_a_resumed_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    last = train_tiny(tmp_path)
    assert f", 1 of {cores()} CPU threads" in capsys.readouterr().err
    assert OmegaConf.load(tmp_path / "run/config.yaml").trainer.num_threads == 1
    assert read_checkpoint(last).config.trainer.num_threads == 1
    monkeypatch.setattr(threads, "FLOPS_PER_THREAD", 1)
    train(config(tmp_path, f"resume={last}", "trainer.max_steps=5"), tmp_path / "other")
    assert f", 1 of {cores()} CPU threads" in capsys.readouterr().err


def test_a_run_does_not_choose_the_threads_of_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []
    fit = run.fit
    monkeypatch.setattr(run, "fit", lambda of_run: used.append(torch.get_num_threads()) or fit(of_run))
    train(config(tmp_path, "trainer.num_threads=3", "trainer.max_steps=1"), tmp_path / "first")
    monkeypatch.setattr(threads, "FLOPS_PER_THREAD", 1)  # now the model pays for every thread
    train(config(tmp_path, "trainer.max_steps=1"), tmp_path / "second")
    assert used == [3, 2]
    assert torch.get_num_threads() == 2


def test_measurements_use_the_threads_that_training_pays_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = load_trained(train_tiny(tmp_path))
    set_threads(None)  # models from elsewhere keep torch's default
    assert torch.get_num_threads() == 2
    set_threads(None, trained)
    assert torch.get_num_threads() == 1
    torch.set_num_threads(2)
    monkeypatch.setattr(threads, "FLOPS_PER_THREAD", 1)
    set_threads(None, trained)
    assert torch.get_num_threads() == 2
    set_threads(3, trained)
    assert torch.get_num_threads() == 3
