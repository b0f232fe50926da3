"""Machines of a run: accelerator, precision, a clock that jumps, a disk that fills."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.fixtures import Patch
from tests.training.small_run import tiny_config
from txl_lightning import files
from txl_lightning.errors import OptionError
from txl_lightning.evaluation.hardware import resolve_accelerator, resolve_precision
from txl_lightning.training import module
from txl_lightning.training.checks import check_config


def test_auto_takes_the_first_accelerator_that_the_machine_has(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    assert isinstance(
        torch.cpu._is_amx_tile_supported(), bool
    )  # private: fails when torch changes it
    options = ("trainer.accelerator=auto", "trainer.precision=auto", "optimizer.ns_precision=auto")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    for cuda, mps, amx, word, *chosen in (
        (True, True, True, "optimizer=muon", "gpu", "bf16-mixed", "bf16-true"),
        (False, True, True, "optimizer=muon", "mps", "32-true", "32-true"),
        (False, True, False, "trainer.devices=2", "cpu", "32-true", "bf16-true"),
        (False, False, False, "optimizer=muon", "cpu", "32-true", "32-true"),
        (False, False, True, "optimizer=muon", "cpu", "bf16-mixed", "bf16-true"),
    ):
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda has=amx: has)
        monkeypatch.setattr(torch.cuda, "is_available", lambda has=cuda: has)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda has=mps: has)
        found = resolve_precision(resolve_accelerator(tiny_config(tmp_path, *options, word)))
        assert [
            found.trainer.accelerator,
            found.trainer.precision,
            found.optimizer.ns_precision,
        ] == chosen


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("trainer.devices=1", "trainer.accelerator=mps: this machine has no Apple GPU"),
        ("trainer.devices=2", "trainer.accelerator=mps: is one device: "),
        ("trainer.precision=bf16-mixed", "trainer.precision=bf16-mixed: must be 32-true with"),
    ],
)
def test_what_a_machine_cannot_do_is_refused(
    tmp_path: Path, monkeypatch: Patch, words: str, message: str
) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "this machine" not in message)
    with pytest.raises(OptionError, match=message):
        check_config(tiny_config(tmp_path, "trainer.accelerator=mps", words))


def test_sums_of_losses_stay_in_float64_on_a_device_without_it(monkeypatch: Patch) -> None:
    """Let losses of the CPU stand for those of Apple's GPU."""
    monkeypatch.setattr(module, "WITHOUT_FLOAT64", ("cpu",))
    loss = module.TokenLoss()
    loss.update(torch.full((2, 3), 2.0), torch.tensor(6.0))
    assert loss.sums.dtype == torch.float64
    assert loss.sums.tolist() == [12.0, 6.0, 6.0]


def test_run_directories_never_collide(tmp_path: Path) -> None:
    made = [files.new_directory(str(tmp_path / "outputs/12-00-00")) for _ in range(3)]
    assert made == [str(tmp_path / f"outputs/12-00-00{end}") for end in ("", "-2", "-3")]
    assert all(Path(path).is_dir() for path in made)
