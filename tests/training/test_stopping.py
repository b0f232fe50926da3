"""Runs that end early: by signals, losses that are not finite, ranks that die."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import psutil
import pytest
import torch

from tests.training.recorded_run import complete, start
from tests.training.small_run import tiny_config
from txl_lightning.errors import Stopped, UserError
from txl_lightning.runs.storage import read_file
from txl_lightning.training.module import LanguageModelModule
from txl_lightning.training.run import train


def poison(monkeypatch: pytest.MonkeyPatch, steps: set[int], what: str = "loss") -> None:
    """Make the loss, or only a gradient, not finite at some steps, and spoil the memory as an overflow would."""
    original = LanguageModelModule.training_step

    def step(self: LanguageModelModule, batch: object, batch_idx: int) -> torch.Tensor:
        loss = original(self, batch, batch_idx)  # type: ignore[arg-type]
        if self.trainer.global_step + 1 not in steps:
            return loss
        if what == "gradient":
            return loss * 1e30 * 1e30 if loss.dtype == torch.float64 else loss * 1e38 * 1e10
        self.training_memory.memory.states.fill_(float("nan"))  # type: ignore[union-attr]
        self.loss = self.loss * float("nan")
        return loss * float("nan")

    monkeypatch.setattr(LanguageModelModule, "training_step", step)


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_step_that_is_not_finite_is_skipped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    poison(monkeypatch, {4, 5, 8}, what)
    options = ("trainer.max_nonfinite_steps=3", "logger=csv", "trainer.log_every_n_steps=1")
    metrics = train(tiny_config(tmp_path, *options), tmp_path / "run")
    assert (metrics["steps"], metrics["skipped_steps"]) == (12, 3)
    assert capsys.readouterr().err.count("skipped: the gradient norm") == 3
    last = read_file(tmp_path / "run/checkpoints/last.ckpt")
    assert all(torch.isfinite(tensor).all() for tensor in last["state_dict"].values())
    assert torch.isfinite(last["training_memory"]["memory"]["states"]).all()
    assert last["callbacks"]["SkippedSteps"] == {"total": 3}


def test_a_skipped_step_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before: dict[str, torch.Tensor] = {}
    poison(monkeypatch, {7})
    stepped = LanguageModelModule.training_step

    def step(self: LanguageModelModule, batch: object, batch_idx: int) -> torch.Tensor:
        if self.trainer.global_step == 6:
            before.update({name: tensor.clone() for name, tensor in self.state_dict().items()})
            before["memory"] = self.training_memory.memory.states.clone()  # type: ignore[union-attr]
        if self.trainer.global_step == 7:
            after = self.state_dict() | {"memory": self.training_memory.memory.states}  # type: ignore[union-attr]
            assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
        return stepped(self, batch, batch_idx)  # type: ignore[arg-type]

    monkeypatch.setattr(LanguageModelModule, "training_step", step)
    train(tiny_config(tmp_path), tmp_path / "run")
    assert "memory" in before


def test_too_many_in_a_row_end_the_run_and_name_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch, set(range(9, 100)))
    options = ("trainer.max_nonfinite_steps=3", "checkpoint.every_n_steps=4", "trainer.max_steps=40")
    best = tmp_path / "run/checkpoints/best.ckpt"
    words = rf"not finite in 3 consecutive steps up to step 11; the last good checkpoint is {best} \(step (\d+)\)"
    with pytest.raises(UserError, match=words) as ended:
        train(tiny_config(tmp_path, *options), tmp_path / "run")
    assert read_file(best)["global_step"] == int(re.search(words, str(ended.value))[1])  # type: ignore[index]
    without = (*options, "trainer.val_every_n_steps=null")
    last = tmp_path / "other/checkpoints/last.ckpt"
    with pytest.raises(UserError, match=rf"; the last checkpoint is {last} \(step 8\); try initial_weights="):
        train(tiny_config(tmp_path, *without), tmp_path / "other")


def test_a_signal_saves_and_stops_and_gives_the_handlers_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    original = LanguageModelModule.training_step

    def step(self: LanguageModelModule, batch: object, batch_idx: int) -> torch.Tensor:
        if self.trainer.global_step == 6:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, batch, batch_idx)  # type: ignore[arg-type]

    monkeypatch.setattr(LanguageModelModule, "training_step", step)
    words = r"stopped by SIGTERM after step 7; to continue, repeat the command with resume=.*/last.ckpt$"
    with pytest.raises(Stopped, match=words) as stopped:
        train(tiny_config(tmp_path), tmp_path / "run")
    assert stopped.value.signum == signal.SIGTERM
    assert read_file(tmp_path / "run/checkpoints/last.ckpt")["global_step"] == 7
    assert {number: signal.getsignal(number) for number in before} == before
    with pytest.raises(Stopped, match=r"stopped by SIGTERM after step 7$"):
        train(tiny_config(tmp_path, "checkpoint.enabled=false"), tmp_path / "b")


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_in_the_final_evaluation_stops_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    original = LanguageModelModule.test_step

    def step(self: LanguageModelModule, batch: object, batch_idx: int) -> None:
        os.kill(os.getpid(), number)
        original(self, batch, batch_idx)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(LanguageModelModule, "test_step", step)
        with pytest.raises(Stopped, match=f"stopped by {number.name}$"):
            train(tiny_config(tmp_path), tmp_path / "run")
    assert not (tmp_path / "run/metrics.json").exists()
    assert train(tiny_config(tmp_path, "resume=auto"), tmp_path / "run")["steps"] == 12


def test_a_second_control_c_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = LanguageModelModule.training_step

    def step(self: LanguageModelModule, batch: object, batch_idx: int) -> torch.Tensor:
        if self.trainer.global_step == 6:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)  # within a second: counts as the same Ctrl-C
            time.sleep(1.2)
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, batch, batch_idx)  # type: ignore[arg-type]

    monkeypatch.setattr(LanguageModelModule, "training_step", step)
    with pytest.raises(Stopped, match=r"stopped by SIGINT$"):
        train(tiny_config(tmp_path), tmp_path / "run")
    assert read_file(tmp_path / "run/checkpoints/last.ckpt")["global_step"] == 5


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "broken"])
def test_a_rank_that_dies_stops_the_others_and_is_named(tmp_path: Path, how: str) -> None:
    event = {"signal": signal.SIGKILL} if how == "killed" else {}
    done = complete(tmp_path, "trainer.devices=2", "trainer.max_steps=2000", at=20, rank=1, **event)
    assert time.time() - (tmp_path / "run/losses.txt").stat().st_mtime < 60  # seconds from the failure to the end
    assert done.returncode != 0
    words = {"killed": "rank 1 was killed by SIGKILL", "broken": "rank 1 failed: RuntimeError: something broke"}
    assert words[how] in done.stderr
    if how == "broken":
        assert "in training_step" in done.stderr  # a defect comes with its traceback
    left = [process for process in psutil.process_iter(["cwd"]) if process.info["cwd"] == str(tmp_path)]
    assert not psutil.wait_procs(left, timeout=20)[1]  # the fork server needs a moment to notice


@pytest.mark.slow
def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    options = ("trainer.devices=2", "trainer.max_steps=100000", "trainer.val_every_n_steps=null")
    run = start(tmp_path, *options, rank=0)
    losses = tmp_path / "run/losses.txt"
    deadline = time.monotonic() + 120
    while not losses.exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    workers = psutil.Process(run.pid).children(recursive=True)
    assert len(workers) >= 2
    run.kill()
    gone, alive = psutil.wait_procs(workers, timeout=20)
    assert alive == []
    assert len(gone) == len(workers)
