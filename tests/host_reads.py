"""Reads of tensors by the CPU, each of which would wait for a GPU: counted, or answered for tensors without data."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
WAITING_OPERATIONS = {
    *(aten._local_scalar_dense, aten.nonzero, aten.equal, aten.masked_select, aten.bincount),
    *(aten._unique2, aten.unique_dim, aten.unique_consecutive, aten.repeat_interleave),
}
COPYING_METHODS = {"cpu", "numpy", "tolist"}  # of a CPU tensor they are no operation
ANSWERED = {"item", "__float__", "__int__", "__bool__", "__index__"}


def _copies_to_cpu(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    # A device that is no word is that of the run: on the CPU Lightning "moves" every batch to it.
    devices = [target for target in (*args[1:2], kwargs.get("device")) if isinstance(target, str)]
    return name in COPYING_METHODS or (name == "to" and "cpu" in devices)


class HostReads(ExitStack):
    """Context in which the operations are recorded that would make the CPU wait for a GPU.

    Works with tensors on the CPU: what a GPU would do is seen by the operation, not by the device.

    Attributes:
        found: names of the operations, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __enter__(self) -> HostReads:
        for mode in (_Methods(), _Operations()):
            mode.found = self.found
            self.enter_context(mode)
        return self


class _Methods(TorchFunctionMode):
    found: list[str]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if _copies_to_cpu(name, args, kwargs or {}):
            self.found.append(name)
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    found: list[str]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        by_mask = func.overloadpacket is aten.index and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        if func.overloadpacket in WAITING_OPERATIONS or by_mask:
            self.found.append(str(func.overloadpacket))
        return func(*args, **(kwargs or {}))


class AnsweredReads(TorchFunctionMode):
    """Context in which reads of `meta` tensors by the CPU get zeros, where reading is allowed: at the end of a result.

    Every other operation of tensors on different devices fails as it does on a GPU.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if args and isinstance(args[0], torch.Tensor) and args[0].is_meta:
            zeros = torch.zeros(args[0].shape, dtype=args[0].dtype)
            if _copies_to_cpu(name, args, kwargs or {}):
                return zeros.tolist() if name == "tolist" else zeros.numpy() if name == "numpy" else zeros
            if name in ANSWERED:
                return zeros.item() if name == "item" else getattr(zeros, name)()
        return func(*args, **(kwargs or {}))
