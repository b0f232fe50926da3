"""Random states of all ranks in every checkpoint."""

from __future__ import annotations

import random
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback

from txl_lightning.distributed.ranks import Ranks


class RandomState(Callback):
    """Saves and restores every rank's random state, so that a resumed run draws the same dropout masks.

    If more ranks resume than wrote the checkpoint, the additional ones get a new seed. Such a run is bit-equal to
    an uninterrupted one only without dropout.

    Args:
        ranks: the processes of the run.
        seed: seed of the run; additional ranks derive theirs from it.
    """

    def __init__(self, ranks: Ranks, seed: int) -> None:
        self.ranks, self.seed = ranks, seed
        self._loaded: list[dict[str, Any]] | None = None

    @property
    def state_key(self) -> str:
        return "RandomState"

    @staticmethod
    def current() -> dict[str, Any]:
        """Return the states of torch (CPU and this process's GPU), NumPy and Python in plain containers."""
        name, keys, *rest = np.random.get_state(legacy=True)
        return {
            "cpu": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,
            "mps": torch.mps.get_rng_state() if torch.backends.mps.is_available() else None,
            "numpy": (name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
            "python": random.getstate(),
        }

    @staticmethod
    def set(state: dict[str, Any]) -> None:
        """Restore a state that `current` returned."""
        torch.set_rng_state(state["cpu"])
        if state["cuda"] is not None and torch.cuda.is_available():
            torch.cuda.set_rng_state(state["cuda"])
        if state.get("mps") is not None and torch.backends.mps.is_available():
            torch.mps.set_rng_state(state["mps"])
        name, keys, *rest = state["numpy"]
        np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
        random.setstate(state["python"])

    def state_dict(self) -> dict[str, Any]:
        return {"ranks": self.ranks.gather(self.current())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loaded = state_dict["ranks"]

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Restore the state here, after everything that draws random numbers before the first step."""
        if self._loaded is None:
            return
        if self.ranks.rank < len(self._loaded):
            self.set(self._loaded[self.ranks.rank])
        else:
            L.seed_everything(self.ranks.seed(self.seed, trainer.global_step), verbose=False)
