"""The random states of all ranks in every checkpoint."""

from __future__ import annotations

import random
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback

from txl_lightning.distributed.ranks import Ranks


class RandomState(Callback):
    """Puts every rank's random state into every checkpoint and back, so that dropout goes on as it would have.

    On another number of ranks the first ones go on with theirs and new ones draw afresh: such a run cannot be
    bit-equal unless nothing is random.

    Args:
        ranks: the processes of the run.
        seed: of ranks that have no state to go on with.
    """

    def __init__(self, ranks: Ranks, seed: int) -> None:
        self.ranks, self.seed = ranks, seed
        self._loaded: list[dict[str, Any]] | None = None

    @staticmethod
    def current() -> dict[str, Any]:
        """The generators of torch (processor and this process's GPU), NumPy and Python, in plain containers."""
        name, keys, *rest = np.random.get_state(legacy=True)
        return {
            "cpu": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,
            "numpy": (name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
            "python": random.getstate(),
        }

    @staticmethod
    def set(state: dict[str, Any]) -> None:
        """The inverse of `current`."""
        torch.set_rng_state(state["cpu"])
        if state["cuda"] is not None and torch.cuda.is_available():
            torch.cuda.set_rng_state(state["cuda"])
        name, keys, *rest = state["numpy"]
        np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
        random.setstate(state["python"])

    def state_dict(self) -> dict[str, Any]:
        """The states of all ranks, in their order."""
        return {"ranks": self.ranks.gather(self.current())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Kept until training starts."""
        self._loaded = state_dict["ranks"]

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """After everything that draws numbers before the first step."""
        if self._loaded is None:
            return
        if self.ranks.rank < len(self._loaded):
            self.set(self._loaded[self.ranks.rank])
        else:
            L.seed_everything(self.ranks.seed(self.seed, trainer.global_step), verbose=False)
