"""Copies to a GPU for which the CPU would wait: those of memory that is not pinned."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from tests.devices.arms import B, make
from tests.training.small_run import add_gradients, bare_module
from txl_lightning.data.streams import Batch
from txl_lightning.training.module import LanguageModelModule


class CopiesToGpu(TorchFunctionMode):
    """Lets tensors stay on the CPU and counts the copies to a GPU.

    Attributes:
        n: number of copies.
        waits: those for which the CPU would wait.
    """

    def __init__(self) -> None:
        super().__init__()
        self.n = self.waits = 0
        self.pinned: list[torch.Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "pin_memory":
            self.pinned.append(args[0])
            return args[0]
        devices = [
            x for x in (*args[1:], kwargs.get("device")) if isinstance(x, torch.device | str)
        ]
        if name == "cuda" or (
            name == "to" and any(torch.device(device).type == "cuda" for device in devices)
        ):
            self.n += 1
            self.waits += not (
                kwargs.get("non_blocking") and any(args[0] is tensor for tensor in self.pinned)
            )
            return args[0]
        return func(*args, **kwargs)


@pytest.mark.filterwarnings("ignore:User provided device_type of 'cuda'")
@pytest.mark.parametrize("segment_len", [6, 2])
@pytest.mark.parametrize("loss", ["full", "half", "random_half"])
def test_a_step_copies_from_pinned_memory_alone(loss, segment_len, monkeypatch):
    module = bare_module(make("relative, memory"), loss=loss, segment_len=segment_len)
    monkeypatch.setattr(LanguageModelModule, "device", torch.device("cuda"))
    window = torch.ones(B, 7).long()
    with CopiesToGpu() as copies:
        add_gradients(
            module,
            Batch(
                window[:, 1:],
                window[:, 1:],
                number=0,
            ),
        )
    assert copies.n == (6 // segment_len if loss == "random_half" else 0)
    assert copies.waits == 0
