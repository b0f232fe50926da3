"""The LightningModule: a language model and the memories that it carries from batch to batch."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch import Tensor, nn

from txl_lightning.config import OptimizerConfig
from txl_lightning.data.streams import Segment
from txl_lightning.training.metrics import TokenLoss, figures
from txl_lightning.training.models import Model, State, state_from_dict
from txl_lightning.training.optimization import make_optimizer


class CarriedMemory:
    """A memory between the segments of one pass over ordered streams.

    It starts afresh at segment 0 and refuses a batch that is not the next one: memories make sense for
    consecutive segments only, and a shuffling loader would silently ruin them.
    """

    def __init__(self) -> None:
        self.memory: State | None = None
        self.next_number = 0

    def before(self, segment: Segment) -> State | None:
        """The memory to score `segment` with.

        Raises:
            RuntimeError: the segment is not the one that follows the last.
        """
        if segment.number == 0:
            return None
        if segment.number != self.next_number:
            raise RuntimeError(
                f"segment {segment.number} came where {self.next_number} was due: a model with memory needs "
                "ordered, non-shuffled streams"
            )
        return self.memory and self.memory.to(segment.tokens.device)  # a checkpoint's is still on the processor

    def after(self, segment: Segment, memory: State) -> None:
        """Keep the memory that scoring `segment` returned."""
        self.memory, self.next_number = memory, segment.number + 1

    def state_dict(self) -> dict[str, Any]:
        """Plain containers for a checkpoint."""
        return {"memory": self.memory and self.memory.state_dict(), "next_number": self.next_number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.memory = state_from_dict(state["memory"]) if state["memory"] else None
        self.next_number = state["next_number"]


def last_half(nll_BT: Tensor) -> Tensor:
    """The losses of the last half of the positions, of an odd number the larger half."""
    return nll_BT[:, nll_BT.shape[1] // 2 :]


class LanguageModelModule(L.LightningModule):
    """Trains and evaluates a language model on ordered streams.

    The training memory and the evaluation memory are separate; neither is a buffer (see `Memory`).

    Args:
        model: scores tokens, see `LanguageModel`.
        optimizer: options of optimiser and schedule.
        max_steps: length of the schedule in updates.
        level: `byte`, `char` or `word`: decides between bits per character and perplexity.
        evaluation_lengths: lengths for `TransformerXL.with_lengths` in validation and test.
        fused: fused optimiser step.
        loss: `full`, or `half`: only the last half of a training segment's positions counts (Table 6).
        compile: score training segments through `torch.compile`, with memory of a static shape.

    Attributes:
        figures: the latest val/… and test/… values, in float64 (Lightning's own are rounded to float32).
    """

    def __init__(
        self,
        model: Model,
        optimizer: OptimizerConfig,
        max_steps: int,
        level: str = "byte",
        evaluation_lengths: dict[str, Any] | None = None,
        fused: bool = True,
        compile: bool = False,
        loss: str = "full",
    ) -> None:
        super().__init__()
        self.model = model
        self.optimizer_config, self.max_steps, self.level, self.fused = optimizer, max_steps, level, fused
        self.evaluation_lengths = evaluation_lengths or {}
        self.training_memory = CarriedMemory()
        self.evaluation_memory = CarriedMemory()
        self.losses = nn.ModuleDict({"val": TokenLoss(), "test": TokenLoss()})
        self.half_loss = loss == "half"
        self.static_memory = compile
        self.score: Any = torch.compile(model.score) if compile else model.score
        self.gradient_norm = torch.zeros(())
        self.figures: dict[str, float] = {}

    def training_step(self, batch: Segment, batch_idx: int) -> Tensor:
        """Mean loss of one segment; the memory moves on."""
        memory: Any = self.training_memory.before(batch)
        if memory is None and self.static_memory:
            memory = self.model.start_memory(batch.tokens.shape[0], static=True)
        nll_BT, memory = self.score(batch.tokens, batch.targets, memory)
        self.training_memory.after(batch, memory)
        return last_half(nll_BT).mean() if self.half_loss else nll_BT.mean()

    def _evaluation_step(self, batch: Segment, stage: str) -> None:
        model: Any = self.model.with_lengths(**self.evaluation_lengths)
        nll_BT, memory = model.score(batch.tokens, batch.targets, self.evaluation_memory.before(batch))
        self.evaluation_memory.after(batch, memory)
        self.losses[stage].update(nll_BT)  # type: ignore[operator]

    def _evaluation_end(self, stage: str) -> None:
        loss: TokenLoss = self.losses[stage]  # type: ignore[assignment]
        values = {f"{stage}/{name}": value for name, value in figures(float(loss.compute()), self.level).items()}
        self.figures |= values
        self.log_dict(values)
        self.figures[f"{stage}/tokens"] = int(loss.tokens)
        self.evaluation_memory = CarriedMemory()
        loss.reset()

    def validation_step(self, batch: Segment, batch_idx: int) -> None:
        """Score one segment at evaluation lengths, with evaluation's own memory."""
        self._evaluation_step(batch, "val")

    def on_validation_epoch_end(self) -> None:
        """Log val/nll and val/bpc (or val/ppl)."""
        self._evaluation_end("val")

    def test_step(self, batch: Segment, batch_idx: int) -> None:
        """As `validation_step`."""
        self._evaluation_step(batch, "test")

    def on_test_epoch_end(self) -> None:
        """Log test/nll and test/bpc (or test/ppl)."""
        self._evaluation_end("test")

    def configure_optimizers(self) -> Any:
        """Adam or AdamW and the per-step schedule."""
        optimizer, schedule = make_optimizer(self.parameters(), self.optimizer_config, self.max_steps, self.fused)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def configure_gradient_clipping(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        """Clip by global norm and remember the norm before clipping."""
        limit = self.optimizer_config.clip_norm or float("inf")
        self.gradient_norm = torch.nn.utils.clip_grad_norm_(self.parameters(), limit)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """The training memory goes into the checkpoint."""
        checkpoint["training_memory"] = self.training_memory.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """And comes back from it."""
        self.training_memory.load_state_dict(checkpoint["training_memory"])
