"""Setup of GPUs without a GPU: transfer of batches, NCCL."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.training.small_run import tiny_config
from txl_lightning.data.datamodule import StreamsDataModule
from txl_lightning.distributed import environment
from txl_lightning.training.checks import check_config


def test_a_batch_is_pinned_for_a_gpu_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config(tmp_path)
    data = StreamsDataModule(config.data, config.evaluation)
    batch = data.streams("train")[0]
    pinned: list[torch.Tensor] = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: pinned.append(self) or self)
    for device, n in (("cpu", 0), ("cuda", 2)):
        data.trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device(device)))  # type: ignore[assignment]
        moved = data.on_before_batch_transfer(batch, 0)
        assert len(pinned) == n
    assert all(tensor.is_contiguous() for tensor in pinned)
    assert torch.equal(moved.tokens, batch.tokens)
    assert torch.equal(moved.targets, batch.targets)
    assert moved.number == batch.number


@pytest.mark.parametrize(("accelerator", "backend"), [("gpu", "nccl"), ("cpu", "gloo")])
def test_gradients_go_by_nccl_on_gpus_and_everything_else_by_gloo(
    accelerator: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    one = dict.fromkeys(("global_rank", "local_rank"), lambda: 1)
    started = SimpleNamespace(world_size=lambda: 2, main_address="localhost", main_port=1, **one)
    monkeypatch.setattr(environment, "environment", lambda: started)
    monkeypatch.setattr(torch.cuda, "set_device", calls.append)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(dist, "init_process_group", lambda *names, **place: calls.append((*names, *place.values())))
    monkeypatch.setattr(dist, "new_group", lambda backend, timeout=timedelta(1): backend)
    monkeypatch.setenv("MASTER_ADDR", "")
    monkeypatch.setenv("MASTER_PORT", "")
    config = tiny_config(tmp_path, f"trainer.accelerator={accelerator}", "trainer.devices=2")
    check_config(config)
    connected = environment.connect(config.trainer)
    device = torch.device("cuda", 1) if accelerator == "gpu" else None
    assert calls == ([device] if device else []) + [(backend, "env://", 1, 2, device)]
    assert (connected.rank, connected.world_size, connected.group) == (1, 2, "gloo")
