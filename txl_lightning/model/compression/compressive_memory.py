"""Memory of two parts: compressed states, then ordinary ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from txl_lightning.model.memory import Memory


@dataclass(frozen=True)
class CompressiveMemory(Memory):
    """Compressed states of the far past, then the layers' inputs of the near past (Rae et al. 2019, §3).

    All states are slots of one row, oldest first: `states` is [compressed | ordinary], and `length` and `filled`
    count the slots of both. `Compressor.next_memory` takes the place of `update`.

    A key's distance is counted in slots of the row [compressed | ordinary | segment], one for each compressed state:
    the paper applies Transformer-XL's relative encoding to the concatenated memories and names no other positions.

    Args:
        n_compressed: number of slots, counted from the oldest, that belong to the compressed part.
        compression_loss: loss of the compression that made this memory, with gradients for the compressor only;
            None without gradients. Not part of `state_dict`. Training takes it out, since it keeps a graph alive.
    """

    n_compressed: int = 0
    compression_loss: Tensor | None = field(default=None, compare=False, repr=False)

    def state_dict(self) -> dict[str, Any]:
        """Return plain containers for a checkpoint."""
        return {**super().state_dict(), "n_compressed": self.n_compressed}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> CompressiveMemory:
        """Rebuild a memory from `state_dict`."""
        filled, first_column, n_compressed = (int(state[name]) for name in ("filled", "first_column", "n_compressed"))
        return cls(state["states"], filled, first_column, n_compressed)
