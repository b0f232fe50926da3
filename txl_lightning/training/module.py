"""LightningModule: trains and evaluates a language model, and carries its memory from batch to batch."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

import lightning as L
import numpy as np
import torch
from torch import Tensor, nn

from txl_lightning.config.schemas import OptimizerConfig
from txl_lightning.data.streams import Segment
from txl_lightning.distributed.ranks import Ranks
from txl_lightning.model.inference.cached import CachedTransformerXL, can_cache
from txl_lightning.model.memory import Memory
from txl_lightning.model.positions import without_marks
from txl_lightning.runs.metrics import TokenLoss, loss_metrics
from txl_lightning.runs.models import Model, State
from txl_lightning.training.carried_memory import CarriedMemory, alike, choose, column_chunks, join_columns, take_loss
from txl_lightning.training.optimization import make_optimizer


def last_half(nll_BT: Tensor) -> Tensor:
    """Return the losses of the last half of the positions; of an odd number, the larger half."""
    return nll_BT[:, nll_BT.shape[1] // 2 :]


class LanguageModelModule(L.LightningModule):
    """Trains and evaluates a language model on ordered streams.

    Training and evaluation have separate memories. Neither is a buffer (see `Memory`).

    Args:
        model: scores tokens, see `LanguageModel`.
        optimizer: options of optimizer and schedule.
        max_steps: length of the schedule in updates.
        level: `byte`, `char`, `word` or `bpe`; decides between bits per character and perplexity.
        evaluation_lengths: arguments of `TransformerXL.with_lengths` for validation and test.
        fused: use the fused optimizer step.
        loss: `full`, or `half` to count only the last half of a training segment's positions (Table 6).
        compile: score training segments through `torch.compile`, with a memory of static shape. While the memory
            fills, segments are scored uncompiled.
        column_chunks: number of chunks of columns in which a segment is processed before one step. The gradient
            equals that of all columns at once; activations need 1/n of the GPU memory.
        ranks: the processes of the run.
        save_memory: store the training memory in checkpoints.
        byte_lengths: bytes of every token, for bits per byte (see `Vocabulary.byte_lengths`).

    Attributes:
        metrics: latest val/… and test/… values in float64 (Lightning rounds its own to float32).
        loss: mean training loss of this rank's columns in the last step, in nats.
        compression_loss: of this rank's columns in the last step; None without a compressed memory.
        gradient_norm: global norm before clipping in the last step.
        step_skipped: whether the last step was skipped because the loss or the gradient was not finite; a tensor on
            the device of the model, since reading it makes the CPU wait for a GPU.
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
        byte_lengths: np.ndarray | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.optimizer_config, self.max_steps, self.level, self.fused = optimizer, max_steps, level, fused
        self.evaluation_lengths = evaluation_lengths or {}
        self.ranks, self.column_chunks, self.save_memory = ranks, column_chunks, save_memory
        # No buffer: DDP would broadcast it before every step.
        self.byte_lengths_V = None if byte_lengths is None else torch.from_numpy(byte_lengths)
        self.training_memory = CarriedMemory(ranks.rank)
        self.evaluation_memory = CarriedMemory()
        self._evaluation_score: Any = None  # a method: a model here would be a second submodule
        self.losses = nn.ModuleDict({"val": TokenLoss(), "test": TokenLoss()})
        self.half_loss = loss == "half"
        self.static_memory, self._longest_segment = compile, 0
        self.score: Any = torch.compile(model.score) if compile else model.score
        self.loss = self.gradient_norm = torch.zeros(())
        self.compression_loss: Tensor | None = None
        self.step_skipped = torch.tensor(False)
        self._memory_before: State | None = None
        self.metrics: dict[str, float] = {}

    def on_train_batch_start(self, batch: Segment, batch_idx: int) -> None:
        self.trainer.optimizers[0].zero_grad()

    def optimizer_zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: Lightning calls this after the first chunks have added their gradients."""

    def training_step(self, batch: Segment, batch_idx: int) -> Tensor:
        """Return the loss of the last chunk of columns; backward of the earlier ones is done here.

        Each chunk's loss is its mean over tokens divided by the number of chunks. The compression loss is added: its
        gradient is that of the compressor alone, where the loss of the tokens has none.
        """
        memory = self._memory_before = self._memory_for(batch)
        score = self._scorer_for(batch, memory)
        losses: list[Tensor] = []
        compression_losses: list[Tensor] = []
        memories: list[State] = []
        total: Tensor | None = None
        for first, chunk, chunk_memory in column_chunks(batch, memory, self.column_chunks):
            if total is not None:  # frees the activations of a chunk before the next one is scored
                self.trainer.strategy.backward(total, None)
            nll_BT, chunk_memory = score(chunk.tokens, chunk.targets, chunk_memory)
            total = (last_half(nll_BT) if self.half_loss else nll_BT).mean() / self.column_chunks
            losses.append(total.detach())
            chunk_memory, compression_loss = take_loss(chunk_memory)
            if compression_loss is not None:
                compression_losses.append(compression_loss.detach() / self.column_chunks)
                total = total + compression_loss / self.column_chunks
            memories.append(replace(chunk_memory, first_column=first))
        self.training_memory.store_after(batch, join_columns(memories))
        self.loss = torch.stack(losses).sum()
        self.compression_loss = torch.stack(compression_losses).sum() if compression_losses else None
        assert total is not None
        return total

    def _memory_for(self, batch: Segment) -> Any:
        """Return the memory before a training segment, on its device; None at the start of an epoch."""
        memory, model = self.training_memory.load_for(batch), cast("Any", self.model)
        if memory is not None:
            return memory.to(batch.tokens.device)  # that of a checkpoint is on the CPU
        return model.start_memory(batch.tokens.shape[0], static=True) if self.static_memory else None

    def _scorer_for(self, batch: Segment, memory: Any) -> Any:
        """Return the compiled `score` for full memories and whole segments; other shapes are not compiled."""
        model: Any = self.model
        fills = self.static_memory and isinstance(memory, Memory) and memory.filled < model.config.memory_slots
        self._longest_segment = max(self._longest_segment, batch.tokens.shape[1])
        is_last_of_epoch = batch.tokens.shape[1] < self._longest_segment
        return model.score if fills or is_last_of_epoch else self.score

    @property
    def skips_on_device(self) -> bool:
        """Whether a step is skipped without asking the device: on a GPU, with a fused optimizer."""
        return self.fused and self.device.type != "cpu"

    def configure_gradient_clipping(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        """Clip by global norm, a compressor by a norm of its own; skip the step if a norm is not finite.

        DDP has averaged the gradients, so the norm is equal on all ranks, and it is not finite if the loss of any
        rank is not. A skipped step leaves weights, the optimizer's state and memory unchanged. With a gradient scaler
        (16-mixed) gradients overflow regularly and the scaler skips those steps itself; only the loss counts then.

        On a GPU the CPU does not wait for the norm: the fused optimizer leaves out its update where its `found_inf`
        is 1, and the memory is chosen on the device. Only while the memory still grows, in the first steps of an
        epoch, does the CPU read the norm.
        """
        if self.ranks.world_size > 1 and self.device.type == "cuda":
            self.ranks.largest(0)  # fails at once if a rank died; waiting for its gradients would not end
        limit = self.optimizer_config.clip_norm or float("inf")
        compressor: Any = getattr(self.model, "compressor", None)
        apart = set() if compressor is None else set(compressor.parameters())
        self.gradient_norm = torch.nn.utils.clip_grad_norm_((p for p in self.parameters() if p not in apart), limit)
        self.step_skipped = ~torch.isfinite(self.gradient_norm)
        if apart:
            self.step_skipped |= ~torch.isfinite(torch.nn.utils.clip_grad_norm_(compressor.parameters(), limit))
        memory = self.training_memory
        before, self._memory_before = self._memory_before, None  # frees a large tensor
        found_inf = None
        if self.skips_on_device and alike(before, memory.memory):
            found_inf = self.step_skipped.float()
            memory.memory = choose(self.step_skipped, before, memory.memory)
        elif self._skip_on_host():
            memory.memory = before
            for parameter in self.parameters():
                parameter.grad = None
        optimizer.found_inf = found_inf  # type: ignore[attr-defined]

    def _skip_on_host(self) -> bool:
        """Read whether to skip the step."""
        skipped = bool(self.step_skipped)
        if skipped and getattr(self.trainer.precision_plugin, "scaler", None) is not None:
            skipped = bool(self.ranks.largest(not bool(torch.isfinite(self.loss))))
            self.step_skipped = torch.tensor(skipped, device=self.device)
        return skipped

    def configure_optimizers(self) -> Any:
        optimizer, schedule = make_optimizer(self.model, self.optimizer_config, self.max_steps, self.fused)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_batch_end(self, *args: Any) -> None:
        """Let a validation follow the last step too: its interval need not divide the number of steps."""
        if self.trainer.global_step >= self.trainer.max_steps:
            self.trainer.should_stop = True  # Lightning validates before it stops early

    def validation_step(self, batch: Segment, batch_idx: int) -> None:
        self._evaluation_step(batch, "val")

    def on_validation_epoch_end(self) -> None:
        self._evaluation_end("val")

    def test_step(self, batch: Segment, batch_idx: int) -> None:
        self._evaluation_step(batch, "test")

    def on_test_epoch_end(self) -> None:
        self._evaluation_end("test")

    @torch.no_grad()
    def _evaluation_step(self, batch: Segment, stage: str) -> None:
        memory = self.evaluation_memory.load_for(batch)
        if memory is None:  # the first segment: the weights stay the same until the last
            self._evaluation_score = self._evaluated_model().score
        nll_BT, memory = self._evaluation_score(batch.tokens, batch.targets, memory)
        self.evaluation_memory.store_after(batch, memory)
        self.losses[stage].update(nll_BT, self._count_bytes(batch.targets))  # type: ignore[operator]

    def _evaluated_model(self) -> Any:
        """Return the model at the evaluation's lengths; a memory holds keys and values, which takes less time."""
        model = self.model.with_lengths(**self.evaluation_lengths)
        return CachedTransformerXL(model) if can_cache(model) and model.config.mem_len else model

    def _count_bytes(self, targets_BT: Tensor) -> Tensor | float:
        """Return the number of bytes of tokens, without waiting for a GPU; nan if it is not known."""
        if self.byte_lengths_V is None:
            return math.nan
        self.byte_lengths_V = self.byte_lengths_V.to(targets_BT.device)
        lengths_BT = self.byte_lengths_V[without_marks(targets_BT)]
        return torch.where((lengths_BT < 0).any(), math.nan, lengths_BT.sum())  # in float32, exact up to 2²⁴

    def _evaluation_end(self, stage: str) -> None:
        loss: TokenLoss = self.losses[stage]  # type: ignore[assignment]
        nll, tokens, n_bytes = loss.compute()
        values = loss_metrics(float(nll), self.level, float(n_bytes / tokens.to(n_bytes.device)))
        self.metrics |= {f"{stage}/{name}": value for name, value in values.items()}
        self.metrics[f"{stage}/tokens"] = int(tokens)
        self.evaluation_memory, self._evaluation_score = CarriedMemory(), None
        loss.reset()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Store the training memory of all ranks."""
        checkpoint["training_memory"] = self.training_memory.state_dict(self.ranks, self.save_memory)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore this rank's slice of the training memory."""
        self.training_memory.load_state_dict(checkpoint["training_memory"], self.ranks)
