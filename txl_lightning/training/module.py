"""The LightningModule: a language model and the memories that it carries from batch to batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn

from txl_lightning.config.schemas import OptimizerConfig
from txl_lightning.data.streams.ordered import Segment
from txl_lightning.distributed.ranks import Ranks
from txl_lightning.runs.metrics import TokenLoss, loss_metrics
from txl_lightning.runs.models import Model, State, state_from_dict
from txl_lightning.training.optimization import make_optimizer


class CarriedMemory:
    """A memory between the segments of one pass over ordered streams.

    It starts afresh at segment 0 and refuses a batch that is not the next one: memories make sense for
    consecutive segments only, and a shuffling loader would silently ruin them.

    Args:
        rank: this process's; its streams are the columns from rank · B on.
    """

    def __init__(self, rank: int = 0) -> None:
        self.rank = rank
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
        if self.rank:
            memory = replace(memory, first_column=self.rank * memory.batch_size)
        self.memory, self.next_number = memory, segment.number + 1

    def state_dict(self, ranks: Ranks, with_memory: bool = True) -> dict[str, Any]:
        """Plain containers for a checkpoint: on the first rank the memory of all columns of the global batch."""
        whole = None
        if with_memory and self.memory is not None:
            parts = ranks.gather(self.memory.to("cpu").state_dict())
            whole = parts and joined([state_from_dict(part) for part in parts]).state_dict()
        return {"memory": whole, "next_number": self.next_number}

    def load_state_dict(self, state: dict[str, Any], ranks: Ranks) -> None:
        """The inverse of `state_dict`: this rank's columns, however many ranks there were then."""
        self.memory, self.next_number = None, state["next_number"]
        if state["memory"]:
            whole = state_from_dict(state["memory"])
            first, end = (rank * whole.batch_size // ranks.world_size for rank in (ranks.rank, ranks.rank + 1))
            self.memory = whole.columns(first, end)


def column_chunks(segment: Segment, memory: State | None, n: int) -> Iterator[tuple[int, Segment, State | None]]:
    """A segment and its memory in n chunks of as many neighbouring columns, with each one's first column."""
    B = segment.tokens.shape[0]
    for first in range(0, B, B // n):
        end = first + B // n
        part = segment._replace(tokens=segment.tokens[first:end], targets=segment.targets[first:end])
        yield first, part, None if memory is None else memory.columns(first, end)


def joined(parts: Sequence[State]) -> State:
    """The memories of neighbouring columns as one."""
    return parts[0] if len(parts) == 1 else type(parts[0]).join(parts)  # type: ignore[arg-type]


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
        column_chunks: go through a segment in so many chunks of columns, and step once after the last: the
            gradient is that of all columns at once, with a fraction of the activations in memory.
        ranks: the processes of the run.
        save_memory: whether checkpoints hold the training memory.

    Attributes:
        figures: the latest val/… and test/… values, in float64 (Lightning's own are rounded to float32).
        loss: mean training loss of this rank's columns in the last step.
        gradient_norm: global norm before clipping in the last step.
        step_skipped: whether the last step changed nothing, because loss or gradient was not finite.
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
        column_chunks: int = 1,
        ranks: Ranks = Ranks(),  # noqa: B008 - frozen
        save_memory: bool = True,
    ) -> None:
        super().__init__()
        self.model = model
        self.optimizer_config, self.max_steps, self.level, self.fused = optimizer, max_steps, level, fused
        self.evaluation_lengths = evaluation_lengths or {}
        self.ranks, self.column_chunks, self.save_memory = ranks, column_chunks, save_memory
        self.training_memory = CarriedMemory(ranks.rank)
        self.evaluation_memory = CarriedMemory()
        self.losses = nn.ModuleDict({"val": TokenLoss(), "test": TokenLoss()})
        self.half_loss = loss == "half"
        self.static_memory = compile
        self.score: Any = torch.compile(model.score) if compile else model.score
        self.loss = self.gradient_norm = torch.zeros(())
        self.step_skipped = False
        self.figures: dict[str, float] = {}

    def training_step(self, batch: Segment, batch_idx: int) -> Tensor:
        """Mean loss of one segment; the memory moves on.

        With chunks of columns each but the last is propagated back here, and the last one's share is returned.
        """
        memory: Any = self.training_memory.before(batch)
        if memory is None and self.static_memory:
            memory = self.model.start_memory(batch.tokens.shape[0], static=True)
        self._memory_before = memory
        losses: list[Tensor] = []
        memories: list[State] = []
        for first, chunk, chunk_memory in column_chunks(batch, memory, self.column_chunks):
            if losses:
                self.trainer.strategy.backward(losses[-1], None)
                losses[-1] = losses[-1].detach()
            nll_BT, chunk_memory = self.score(chunk.tokens, chunk.targets, chunk_memory)
            losses.append((last_half(nll_BT) if self.half_loss else nll_BT).mean() / self.column_chunks)
            memories.append(replace(chunk_memory, first_column=first))
        self.training_memory.after(batch, joined(memories))
        self.loss = torch.stack([loss.detach() for loss in losses]).sum() if len(losses) > 1 else losses[0].detach()
        return losses[-1]

    def on_train_batch_start(self, batch: Segment, batch_idx: int) -> None:
        """Gradients start afresh before the first chunk is propagated back."""
        self.trainer.optimizers[0].zero_grad()

    def optimizer_zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: Lightning would do it after the first chunks."""

    def _evaluation_step(self, batch: Segment, stage: str) -> None:
        model: Any = self.model.with_lengths(**self.evaluation_lengths)
        nll_BT, memory = model.score(batch.tokens, batch.targets, self.evaluation_memory.before(batch))
        self.evaluation_memory.after(batch, memory)
        self.losses[stage].update(nll_BT)  # type: ignore[operator]

    def _evaluation_end(self, stage: str) -> None:
        loss: TokenLoss = self.losses[stage]  # type: ignore[assignment]
        nll, tokens = loss.compute()
        values = {f"{stage}/{name}": value for name, value in loss_metrics(float(nll), self.level).items()}
        self.figures |= {**values, f"{stage}/tokens": int(tokens)}
        self.evaluation_memory = CarriedMemory()
        loss.reset()

    def validation_step(self, batch: Segment, batch_idx: int) -> None:
        """Score one segment at evaluation lengths, with evaluation's own memory."""
        self._evaluation_step(batch, "val")

    def on_validation_epoch_end(self) -> None:
        """Leave val/nll and val/bpc (or val/ppl) in `figures`."""
        self._evaluation_end("val")

    def test_step(self, batch: Segment, batch_idx: int) -> None:
        """As `validation_step`."""
        self._evaluation_step(batch, "test")

    def on_test_epoch_end(self) -> None:
        """Leave test/nll and test/bpc (or test/ppl) in `figures`."""
        self._evaluation_end("test")

    def configure_optimizers(self) -> Any:
        """Adam or AdamW and the per-step schedule."""
        optimizer, schedule = make_optimizer(self.model, self.optimizer_config, self.max_steps, self.fused)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def configure_gradient_clipping(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        """Clip by global norm and remember the norm before clipping; give up a step that is not finite.

        The norm is the same on all ranks, whose gradients were averaged, and not finite if any rank's loss is
        not. Such a step leaves weights and memory as they were. With a gradient scaler (16-mixed) gradients
        overflow in good health, and the scaler passes over them; then only the loss counts.
        """
        if self.ranks.world_size > 1 and self.device.type == "cuda":
            self.ranks.largest(0)  # fails at once if a rank died, where waiting for the gradients would not
        limit = self.optimizer_config.clip_norm or float("inf")
        self.gradient_norm = torch.nn.utils.clip_grad_norm_(self.parameters(), limit)
        self.step_skipped = not bool(torch.isfinite(self.gradient_norm))
        if self.step_skipped and getattr(self.trainer.precision_plugin, "scaler", None) is not None:
            self.step_skipped = bool(self.ranks.largest(not bool(torch.isfinite(self.loss))))
        if self.step_skipped:
            self.training_memory.memory = self._memory_before
            for parameter in self.parameters():
                parameter.grad = None
        self._memory_before = None  # large: not kept for longer than it may be needed

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """The training memory of all ranks goes into the checkpoint."""
        checkpoint["training_memory"] = self.training_memory.state_dict(self.ranks, self.save_memory)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """And this rank's columns come back from it."""
        self.training_memory.load_state_dict(checkpoint["training_memory"], self.ranks)
