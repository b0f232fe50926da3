"""State at the boundary between two steps."""

from __future__ import annotations

import lightning as L

from txl_lightning.training.callbacks.random_state import RandomState
from txl_lightning.training.lightning_internals import discard_unfinished_batch
from txl_lightning.training.module import LanguageModelModule


class StepBoundary:
    """State after a completed step, to undo an unfinished one.

    Memory, streams, random state and Lightning's counters change during a step. Weights and optimizer change at
    its very end only, so they need no copy; the memory is an immutable value and needs none either.
    """

    def __init__(self, trainer: L.Trainer, module: LanguageModelModule) -> None:
        self.trainer, self.module = trainer, module
        self.carried = (module.training_memory.memory, module.training_memory.next_number)
        self.random = RandomState.current()
        self.streams = trainer.train_dataloader.state_dict()  # type: ignore[union-attr]

    def restore(self) -> None:
        """Undo the unfinished step."""
        self.module.training_memory.memory, self.module.training_memory.next_number = self.carried
        RandomState.set(self.random)
        self.trainer.train_dataloader.load_state_dict(self.streams)  # type: ignore[union-attr]
        discard_unfinished_batch(self.trainer)
