"""A training step never makes the CPU wait for a GPU, except where a number is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import pytest

from tests.host_reads import HostReads
from tests.training.small_run import poison, tiny_config
from txl_lightning.distributed.ranks import Ranks
from txl_lightning.errors import UserError
from txl_lightning.training.module import LanguageModelModule
from txl_lightning.training.run import TrainingRun, build, fit, quiet_libraries, train
from txl_lightning.training.stopping import StopSignals

STEPS = ("trainer.max_steps=12", "trainer.val_every_n_steps=12", "checkpoint.every_n_steps=12")


class Watch(L.Callback):
    """Records reads from the start of step `first` to the start of step `last`, with the loop between steps."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last, self.reads = first, last, HostReads()

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        if trainer.global_step + 1 == self.first:
            self.reads.__enter__()
        if trainer.global_step + 1 == self.last:
            self.reads.__exit__(None, None, None)


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LanguageModelModule, "reads_are_free", False)


def prepare(directory: Path, *overrides: str) -> TrainingRun:
    config = tiny_config(directory, *STEPS, *overrides)
    with quiet_libraries():
        return build(config, directory / "run", Ranks(), StopSignals(Ranks()))


def reads_of_steps(run: TrainingRun, first: int = 4, last: int = 9) -> list[str]:
    watch = Watch(first, last)
    run.trainer.callbacks.append(watch)  # type: ignore[attr-defined]
    with quiet_libraries():
        fit(run)
    return watch.reads.found


@pytest.mark.parametrize(
    "overrides",
    [
        ("model.dropout=0.1", "trainer.precision=bf16-mixed", "optimizer=muon"),
        ("encoding=shaw", "loss=random_half", "trainer.stream_groups=2"),
        ("model=lstm", "model.d_model=16"),
        pytest.param(("memory=off",), marks=pytest.mark.slow),
        pytest.param(("encoding=al_rfou", "model.pre_norm=true"), marks=pytest.mark.slow),
        pytest.param(("model=qrnn", "model.d_model=16"), marks=pytest.mark.slow),
    ],
)
def test_no_step_without_a_log_entry_waits(overrides: tuple[str, ...], tmp_path: Path) -> None:
    assert reads_of_steps(prepare(tmp_path, *overrides)) == []


def test_an_adaptive_softmax_waits_once(tmp_path: Path) -> None:
    reads = reads_of_steps(prepare(tmp_path, "model.cutoffs=[20,40,60]"), first=4, last=9)
    assert reads == ["tolist"] * 5


@pytest.mark.parametrize(
    ("options", "step"),
    [
        (("trainer.log_every_n_steps=6",), 6),
        (("trainer.log_every_n_steps=50", "checkpoint.every_n_steps=5"), 5),
        (("trainer.log_every_n_steps=50", "checkpoint.keep_every_n_steps=8"), 8),
        (("trainer.log_every_n_steps=50", "trainer.val_every_n_steps=7"), 7),
        (("trainer.log_every_n_steps=50",), 12),
    ],
)
def test_a_loss_that_is_not_finite_ends_the_run_before_it_is_saved(
    options: tuple[str, ...], step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch, (4,))
    with pytest.raises(UserError, match=f"not finite in or before step {step}; no checkpoint was written yet"):
        train(tiny_config(tmp_path, *STEPS, *options), tmp_path / "run")
    assert not list((tmp_path / "run").rglob("*.ckpt"))
