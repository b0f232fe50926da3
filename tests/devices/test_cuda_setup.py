"""Setup of GPUs without a GPU: transfer of batches, NCCL, MFU in the log."""

from __future__ import annotations

import csv
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy

from tests.training.small_run import tiny_config
from txl_lightning.data.datamodule import StreamsDataModule
from txl_lightning.distributed import environment
from txl_lightning.training import curves, run
from txl_lightning.training.checks import check_config
from txl_lightning.training.run import train


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


def test_the_trainer_of_several_gpus_is_ddp_with_the_options_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(run.L, "Trainer", lambda **options: given.update(options) or object())
    monkeypatch.setattr(run, "disable_signal_handlers", lambda trainer: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    config = tiny_config(tmp_path, "trainer=ddp", "trainer.devices=4")
    run._build_trainer(config, tmp_path, [], None)
    assert isinstance(given["strategy"], DDPStrategy)
    assert (given["accelerator"], given["devices"], given["precision"]) == ("gpu", 4, "bf16-mixed")


def test_mfu_and_peak_memory_are_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, ...]] = []
    monkeypatch.setattr(curves, "peak_flops", lambda device, precision: 1e12)
    monkeypatch.setattr(curves, "training_flops", lambda model, *lengths: sizes.append(lengths) or 64000.0)
    options = ("logger=csv", "trainer.log_every_n_steps=6", "evaluation.max_segments=1")
    train(tiny_config(tmp_path, *options), tmp_path / "run")
    rows = list(csv.DictReader((tmp_path / "run/metrics.csv").read_text().splitlines()))
    (_, row) = [row for row in rows if row["train/mfu"]]
    assert float(row["train/peak_memory_bytes"]) > 50e6
    assert sizes == [(4, 8)] * 2
    per_second = 64000 / (4 * 8) * float(row["train/tokens_per_second"])
    assert float(row["train/mfu"]) == pytest.approx(per_second / 1e12, rel=1e-3)


def test_no_mfu_is_invented_where_the_peak_is_unknown(tmp_path: Path) -> None:
    train(tiny_config(tmp_path, "logger=csv", "evaluation.max_segments=1"), tmp_path / "run")
    assert "train/mfu" not in (tmp_path / "run/metrics.csv").read_text()
