"""Runs that end early: by signals, losses that are not finite, ranks that die."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest
import torch

from tests.fixtures import Patch
from tests.in_process import run_txl
from tests.training.recorded_run import start
from tests.training.small_run import TINY, patch_module, poison, tiny_config, train_tiny
from txl_lightning.errors import Stopped, UserError
from txl_lightning.evaluation.trained import read_file


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_what_is_not_finite_ends_a_run(tmp_path, monkeypatch, what):
    """Saved are only steps before it."""
    poison(monkeypatch, {9}, what)
    options = (
        "checkpoint.every_n_steps=4",
        "trainer.max_steps=40",
        "trainer.val_every_n_steps=null",
    )
    last = tmp_path / "run/checkpoints/last.ckpt"
    words = rf"not finite in or before step 1\d; try a lower optimizer.lr, .* a checkpoint in {last.parent}$"
    with pytest.raises(UserError, match=words):
        train_tiny(tmp_path, *options)
    saved = read_file(last)
    assert saved["global_step"] == 8
    assert all(torch.isfinite(tensor).all() for tensor in saved["state_dict"].values())
    assert torch.isfinite(saved["txl_lightning"]["training"]["memory"]["memory"]["states"]).all()


def to_continue(directory: Path) -> str:
    """Return the end of the line of a stopped run; no `resume=PATH` is allowed after the last step."""
    return f"; to continue, repeat the command with hydra.run.dir={directory}/run resume=auto"


def send(monkeypatch: Patch, number: signal.Signals, *pauses: float) -> None:
    """Let the process get a signal in step 7, again after each pause."""

    def kill(module):
        if module.trainer.global_step == 6:
            for pause in (0.0, *pauses):
                time.sleep(pause)
                os.kill(os.getpid(), number)

    patch_module(monkeypatch, "training_step", before=kill)


def test_a_signal_saves_and_stops_and_gives_the_handlers_back(tmp_path, monkeypatch):
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    send(monkeypatch, signal.SIGTERM)
    words = rf"stopped by SIGTERM after step 7{to_continue(tmp_path)}$"
    with pytest.raises(Stopped, match=words) as stopped:
        train_tiny(tmp_path)
    assert stopped.value.signum == signal.SIGTERM
    assert read_file(tmp_path / "run/checkpoints/last.ckpt")["global_step"] == 7
    assert {number: signal.getsignal(number) for number in before} == before
    with pytest.raises(Stopped, match=r"stopped by SIGTERM after step 7$"):
        train_tiny(tmp_path, "checkpoint.enabled=false", name="b")


@pytest.mark.slow
def test_a_run_stopped_after_its_last_step_continues(tmp_path, monkeypatch):
    text = tiny_config(tmp_path).data.path
    words = [
        *TINY,
        f"data.path={text}",
        f"data.cache_dir={tmp_path}/cache",
        "trainer.max_steps=7",
    ]
    with monkeypatch.context() as patch:
        send(patch, signal.SIGTERM)
        done = run_txl("train", *words, directory=tmp_path)  # without hydra.run.dir
    assert done.status == 128 + signal.SIGTERM
    stopped = "stopped by SIGTERM after step 7; to continue, repeat the command with "
    named = done.err.partition(stopped)[2].splitlines()[0].split()
    assert run_txl("train", *words, *named, directory=tmp_path).status == 0
    assert len(list(tmp_path.glob("outputs/*/*/metrics.json"))) == 1


def test_a_closed_terminal_stops_a_run_but_for_nohup(tmp_path, monkeypatch):
    send(monkeypatch, signal.SIGHUP)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the suite itself may run under nohup
    try:
        with pytest.raises(Stopped, match="stopped by SIGHUP after step 7; to continue"):
            train_tiny(tmp_path)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        assert train_tiny(tmp_path, "resume=auto")["steps"] == 12
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_final_test_stops_at_once(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch_module(
            patch,
            "test_step",
            before=lambda module: os.kill(os.getpid(), signal.SIGTERM),
        )
        with pytest.raises(
            Stopped,
            match=f"stopped by SIGTERM{to_continue(tmp_path)}$",
        ):
            train_tiny(tmp_path)
    assert not (tmp_path / "run/metrics.json").exists()
    assert train_tiny(tmp_path, "resume=auto")["steps"] == 12


def test_a_second_control_c_does_not_wait(tmp_path, monkeypatch):
    send(monkeypatch, signal.SIGINT, 0.0, 1.2)  # within a second it counts as the same Ctrl-C
    with pytest.raises(
        Stopped,
        match=rf"stopped by SIGINT{to_continue(tmp_path)}$",
    ):
        train_tiny(tmp_path)
    assert read_file(tmp_path / "run/checkpoints/last.ckpt")["global_step"] == 5


@pytest.mark.full
@pytest.mark.parametrize("how", ["killed", "broken"])
def test_a_rank_that_dies_stops_the_others_and_is_named(tmp_path, how):
    event = {"at": 20, "rank": 1}
    said = ["rank 1 was killed by SIGKILL; the other ranks were stopped"]
    if how == "killed":
        event["signal"] = signal.SIGKILL
    else:  # a defect with its traceback
        said = ["RuntimeError: something broke", "rank 1 ended with exit status 1"]
    done = start(tmp_path, "trainer.devices=2", "trainer.max_steps=2000", **event).finish()
    assert done.returncode != 0
    for words in said:
        assert words in done.stderr
    left = []
    for process in psutil.process_iter(["cwd"]):
        if process.info["cwd"] == str(tmp_path):
            left.append(process)
    assert not psutil.wait_procs(left, timeout=20)[1]
