"""Collectives of two ranks, and the GPU that each of them takes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import lightning as L
import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop

from tests.training.small_run import tiny_config
from txl_lightning.config.schemas import TrainerConfig
from txl_lightning.evaluation.commands import chosen_device
from txl_lightning.ranks import connect
from txl_lightning.training import run

STEPS = range(4, 9)
OPTIONS = ("trainer.max_steps=10", "trainer.val_every_n_steps=10", "checkpoint.every_n_steps=10")


class Collectives(L.Callback):
    """Writes the number of collectives of each kind in a step, from the first of `STEPS` to the last."""

    def __init__(self, file: str) -> None:
        self.file = Path(file)

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        if trainer.global_step + 1 == STEPS.start:
            self.profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
            self.profiler.__enter__()
        if trainer.global_step + 1 == STEPS.stop:
            self.profiler.__exit__(None, None, None)
            found = Counter(e.name for e in self.profiler.events() if e.name.startswith("c10d::"))
            if trainer.is_global_zero:
                self.file.write_text(
                    json.dumps({name: n / len(STEPS) for name, n in found.items()})
                )


@pytest.mark.slow
def test_two_ranks_exchange_gradients_and_one_flag(tmp_path):
    """One bucket of gradients, and one flag through gloo, which no GPU waits for."""
    config = tiny_config(tmp_path, *OPTIONS, "trainer.log_every_n_steps=100", "trainer.devices=2")
    config.callbacks["collectives"] = {
        "_target_": f"{__name__}.Collectives",
        "file": f"{tmp_path}/found.json",
    }
    run.train(config, tmp_path / "run")
    assert json.loads((tmp_path / "found.json").read_text()) == {"c10d::allreduce_": 2.0}


def test_lightning_asks_for_signals_by_the_method_that_is_replaced():
    assert "_broadcast_sigterm_tensor" in _TrainingEpochLoop.advance.__code__.co_names


Devices = list[torch.device]


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Devices:
    """Devices that became the current one."""
    chosen = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    return chosen


@pytest.mark.parametrize(
    ("visible", "index"),
    [(4, 2), (1, 0)],
)
def test_a_command_makes_its_gpu_the_current_one(visible, index, devices, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert [chosen_device("gpu")] == devices == [torch.device("cuda", index)]


ELASTIC = {
    "TORCHELASTIC_RUN_ID": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "WORLD_SIZE": "4",
    "RANK": "2",
    "LOCAL_RANK": "2",
}


@pytest.mark.parametrize(
    ("accelerator", "backend", "gpu"),
    [("gpu", "nccl", torch.device("cuda", 2)), ("cpu", "gloo", None)],
)
def test_ranks_meet_with_the_gpu_of_each(accelerator, backend, gpu, devices, monkeypatch):
    """NCCL knows the GPU from the start; flags have a group of gloo's."""
    init = Mock()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(dist, "init_process_group", init)
    monkeypatch.setattr(dist, "new_group", lambda backend, **_: backend)
    for name, value in ELASTIC.items():
        monkeypatch.setenv(name, value)
    connected = connect(TrainerConfig(accelerator=accelerator, devices=4))
    assert init.call_args.args[0] == backend
    assert init.call_args.kwargs == {"rank": 2, "world_size": 4, "device_id": gpu}
    assert devices == ([gpu] if gpu else [])
    assert (connected.rank, connected.world_size, connected.group) == (2, 4, "gloo")
