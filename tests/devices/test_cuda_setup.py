"""Setup of GPUs without a GPU: transfer of batches."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from tests.training.small_run import tiny_config
from txl_lightning.data.datamodule import StreamsDataModule


def test_a_batch_is_pinned_for_a_gpu_only(tmp_path, monkeypatch):
    config = tiny_config(tmp_path)
    data = StreamsDataModule(config.data, config.evaluation)
    batch = data.streams("train")[0]
    pinned = []
    monkeypatch.setattr(
        torch.Tensor,
        "pin_memory",
        lambda self: pinned.append(self) or self,
    )
    for device, n in (("cpu", 0), ("cuda", 2)):
        data.trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device(device)))
        moved = data.on_before_batch_transfer(batch, 0)
        assert len(pinned) == n
    assert all(tensor.is_contiguous() for tensor in pinned)
    torch.testing.assert_close(
        moved[:3],
        batch[:3],
        rtol=0,
        atol=0,
    )
