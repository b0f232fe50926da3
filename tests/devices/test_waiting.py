"""A training step never makes the CPU wait for a GPU, except where a number is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import pytest

from tests.host_reads import HostReads
from tests.training.small_run import poison, tiny_config
from txl_lightning.errors import UserError
from txl_lightning.ranks import Ranks
from txl_lightning.training.callbacks import StopSignals
from txl_lightning.training.run import build, fit, quiet_libraries, train

STEPS = ("trainer.max_steps=12", "trainer.val_every_n_steps=12", "checkpoint.every_n_steps=12")


class Watch(L.Callback):
    """Records reads from the start of step 4 to the start of step 9, with the loop between steps."""

    def __init__(self) -> None:
        self.reads = HostReads()

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        if trainer.global_step + 1 == 4:
            self.reads.__enter__()
        if trainer.global_step + 1 == 9:
            self.reads.__exit__(None, None, None)


def reads_of_steps(directory: Path, *overrides: str) -> list[str]:
    watch = Watch()
    with quiet_libraries():
        run = build(
            tiny_config(directory, *STEPS, *overrides),
            directory / "run",
            Ranks(),
            StopSignals(Ranks()),
        )
        run.trainer.callbacks.append(watch)
        fit(run)
    return watch.reads.found


ARMS = [
    ("model.dropout=0.1", "trainer.precision=bf16-mixed", "optimizer=muon"),
    ("encoding=shaw", "loss=random_half", "trainer.stream_groups=2"),
    ("model=lstm", "model.d_model=16"),
    pytest.param(("memory=off",), marks=pytest.mark.full),
    pytest.param(("encoding=al_rfou", "model.pre_norm=true"), marks=pytest.mark.full),
    pytest.param(("model=qrnn", "model.d_model=16"), marks=pytest.mark.full),
]


@pytest.mark.slow
@pytest.mark.parametrize("overrides", ARMS)
def test_no_step_without_a_log_entry_waits(overrides, tmp_path):
    assert reads_of_steps(tmp_path, *overrides) == []


@pytest.mark.slow
def test_an_adaptive_softmax_waits_once(tmp_path):
    assert reads_of_steps(tmp_path, "model.cutoffs=[20,40,60]") == ["tolist"] * 5


NOTICED = {
    "trainer.log_every_n_steps": 6,
    "checkpoint.every_n_steps": 5,
}
NOTICED |= {"trainer.val_every_n_steps": 7, "trainer.max_steps": 12}


@pytest.mark.parametrize("option", NOTICED)
def test_a_loss_that_is_not_finite_ends_the_run_unsaved(option, tmp_path, monkeypatch):
    poison(monkeypatch, (4,))
    step = NOTICED[option]
    options = (*STEPS, "trainer.log_every_n_steps=50", f"{option}={NOTICED[option]}")
    with pytest.raises(
        UserError, match=f"not finite in or before step {step}; try a lower optimizer.lr"
    ):
        train(tiny_config(tmp_path, *options), tmp_path / "run")
    assert not list((tmp_path / "run").rglob("*.ckpt"))
