"""The compiled step as CUDA graphs: what replaying them asks of a training, with `trainer.graph=true`.

torch captures the compiled forward and backward pass (`mode="reduce-overhead"`) and replays them by one launch each.
A replay reads its inputs at the addresses of the capture, and overwrites the results of the replay before it. So the
memory is copied out of the results, always to one place. Clipping, optimizer, learning rate and gradient scaler stay
outside; dropout draws from the generator of the GPU, which each replay moves on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor


class OnePlace:
    """Keeps the tensors of a memory in one storage from step to step."""

    def __init__(self) -> None:
        self.kept: dict[str, Tensor] = {}

    def put(self, memory: Any) -> Any:
        """Return the memory in the storage of the memories before it; a new one where shape or type has changed."""
        return replace(memory, **{name: self._put(name, x) for name, x in memory._tensors().items()})

    def _put(self, name: str, x: Tensor) -> Tensor:
        kept = self.kept.get(name)
        if kept is None or (kept.shape, kept.dtype, kept.device) != (x.shape, x.dtype, x.device):
            kept = self.kept[name] = torch.empty_like(x, memory_format=torch.contiguous_format)
            torch._dynamo.mark_static_address(kept)  # a graph then reads it there, without a copy of its own
        return kept if kept is x else kept.copy_(x)
