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
        if not args or not isinstance(args[0], torch.Tensor) or not args[0].is_meta:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
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
        by_mask = operation is aten.index and _has_mask(args[1])
        if operation in WAITING_OPERATIONS or by_mask:
            self.found.append(str(operation))
        return func(*args, **(kwargs or {}))


def _has_mask(indices: list[torch.Tensor | None]) -> bool:
    return any(index is not None and index.dtype in MASKS for index in indices)


def _copies_to_cpu(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if name in COPYING_METHODS:
        return True
    if name != "to":
        return False
    # A torch.device is the device of the run: on the CPU Lightning "moves" every batch.
    targets = [target for target in (*args[1:2], kwargs.get("device")) if isinstance(target, str)]
    return "cpu" in targets
