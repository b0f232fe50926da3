"""Count the operations that a GPU would launch, without a GPU."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

VIEWS = {
    *(
        "view",
        "_unsafe_view",
        "t",
        "transpose",
        "split",
        "split_with_sizes",
        "slice",
        "detach",
        "unbind",
        "expand",
    ),
    *(
        "as_strided",
        "permute",
        "unsqueeze",
        "squeeze",
        "select",
        "alias",
        "chunk",
        "diagonal",
        "_reshape_alias",
    ),
}


class Launches(TorchDispatchMode):
    """Context that counts operations with a kernel; views, and the creation of tensors without values, have none.

    Attributes:
        by_name: calls of each operation.
        sizes: number of those tensors of each size in bytes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.by_name: Counter[str] = Counter()
        self.sizes: Counter[int] = Counter()

    @property
    def n(self) -> int:
        """Number of all calls."""
        return self.by_name.total()

    @property
    def written(self) -> int:
        """Bytes of all tensors that were written."""
        return sum(size * n for size, n in self.sizes.items())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name not in VIEWS and not name.startswith(("empty", "new_empty", "_record_function")):
            self.by_name[name] += 1
            self.sizes[getattr(result, "nbytes", 0)] += 1
        return result
