"""Reads of tensors by the CPU, each of which would wait for a GPU: counted, or answered with zeros."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
WAITING_OPERATIONS = {
    aten._local_scalar_dense,
    aten._unique2,
    aten.bincount,
    aten.equal,
    aten.masked_select,
    aten.nonzero,
    aten.repeat_interleave,
    aten.unique_consecutive,
    aten.unique_dim,
}
COPYING_METHODS = {"cpu", "numpy", "tolist"}  # no operation for a tensor that is on the CPU
SCALAR_METHODS = {"item", "__float__", "__int__", "__bool__", "__index__"}
MASKS = (torch.bool, torch.uint8)


class HostReads(ExitStack):
    """Context that records the operations that would make the CPU wait for a GPU.

    It works with tensors on the CPU: the operation tells what a GPU would do, not the device.

    Attributes:
        found: names of the operations, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __enter__(self) -> HostReads:
        self.enter_context(_Methods(self.found))
        self.enter_context(_Operations(self.found))
        return self


class AnsweredReads(TorchFunctionMode):
    """Context that answers reads of `meta` tensors with zeros, where a result may be read.

    Every other operation of tensors on different devices fails as it does on a GPU.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if args and isinstance(args[0], torch.Tensor) and args[0].is_meta:
            zeros = torch.zeros(args[0].shape, dtype=args[0].dtype)
            if name in SCALAR_METHODS or name in ("tolist", "numpy"):
                return getattr(zeros, name)()
            if _copies_to_cpu(name, args, kwargs):
                return zeros
        return func(*args, **kwargs)


class _Methods(TorchFunctionMode):
    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if _copies_to_cpu(name, args, kwargs):
            self.found.append(name)
        return func(*args, **kwargs)


class _Operations(TorchDispatchMode):
    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operation = func.overloadpacket
        waits = operation in WAITING_OPERATIONS
        if operation is aten.index:
            waits = any(index is not None and index.dtype in MASKS for index in args[1])
        if waits:
            self.found.append(str(operation))
        return func(*args, **(kwargs or {}))


def _copies_to_cpu(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if name == "to":
        # A torch.device is the device of the run: on the CPU Lightning "moves" every batch.
        return "cpu" in [x for x in (*args[1:2], kwargs.get("device")) if isinstance(x, str)]
    return name in COPYING_METHODS
