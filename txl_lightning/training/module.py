"""Language model as a LightningModule: carried memory, one step of the optimizer, validation and test."""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import lightning as L
import numpy as np
import torch
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy, ParallelStrategy
from torch import Tensor
from torchmetrics import Metric

from txl_lightning.config.lengths import Lengths, evaluation_lengths, in_windows
from txl_lightning.config.schemas import Config
from txl_lightning.data.streams import Batch, part_of_streams
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.distributed.ranks import Ranks
from txl_lightning.errors import require
from txl_lightning.model.baselines import LSTMLayer
from txl_lightning.model.embedding import TokenSoftmax
from txl_lightning.model.inference.cached import CachedTransformerXL, can_cache
from txl_lightning.model.memory import Memory
from txl_lightning.model.positions import without_marks
from txl_lightning.runs.metrics import loss_metrics
from txl_lightning.runs.models import Model, State
from txl_lightning.runs.storage import MEMORY, named_files, read_file, write_checkpoint
from txl_lightning.runs.trained import load_trained
from txl_lightning.training.optimization import make_optimizer

WITHOUT_FLOAT64 = ("mps",)  # types of devices

UNCOMPILED: tuple[tuple[Any, str], ...] = (
    (TokenSoftmax, "_add_tails"),  # the shapes differ in every call, and each would be compiled
    (LSTMLayer, "forward"),  # torch compiles no LSTM, and torch 2.11 fails at one with other weights
)


class UnwrittenMemory(OSError):  # noqa: N818 - a checkpoint is not written, and training continues
    """Raised on all ranks when one of them could not write its memory, with its error."""


class MemoryHolder:
    """Memory between the segments of one pass over ordered streams.

    The memory is empty at segment 0. A segment that does not follow the last one is an error: with a shuffling
    loader the memory would hold states of unrelated text.

    Attributes:
        memory: memory after the last segment; None before the first.
        next_number: number of the segment that follows.
        folder: folder of the checkpoints, to which several ranks write their parts; None to join these in one.
    """

    def __init__(self) -> None:
        self.memory: Any = None
        self.next_number = 0
        self.folder: Path | None = None

    def load_for(self, segment: Batch) -> Any:
        """Return the memory to score `segment` with; None at segment 0, or where a resumed run found none.

        Raises:
            RuntimeError: the segment does not follow the last one.
        """
        if segment.number == 0:
            return None
        if segment.number != self.next_number:
            found = f"expected segment {self.next_number}, got segment {segment.number}"
            raise RuntimeError(f"{found}: a model with memory needs ordered, non-shuffled streams")
        return self.memory

    def store_after(self, segment: Batch, memory: Any) -> None:
        """Store the memory that scoring `segment` returned."""
        self.memory, self.next_number = memory, segment.number + 1

    def state_dict(self, ranks: Ranks, step: int) -> dict[str, Any]:
        """Return plain containers for the checkpoint of a step; all ranks must call this.

        One rank's memory is in them, as is that of several without a `folder`. With it each rank writes its streams to
        a file there, complete before a checkpoint names it and of a name of its own, so that older checkpoints keep
        theirs: a run that is killed leaves every checkpoint its memory.

        Raises:
            UnwrittenMemory: on all ranks, if one of them cannot write its file.
        """
        state: dict[str, Any] = {"memory": None, "next_number": self.next_number}
        if self.memory is None:  # no step has stored one yet
            return state
        memory = self.memory.to("cpu")
        if self.folder is None or ranks.world_size == 1:
            return {**state, "memory": join_streams(ranks.gather(memory)).state_dict()}
        name, error = ranks.first(f"step{step}-{uuid.uuid4().hex[:8]}"), ""
        files = [f"{MEMORY}/{name}-{rank}-of-{ranks.world_size}.pt" for rank in range(ranks.world_size)]
        path = self.folder / files[ranks.rank]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_checkpoint(memory.state_dict(), path)
        except OSError as failed:
            error = str(failed)
        if errors := [*filter(None, ranks.gather(error))]:
            raise UnwrittenMemory(errors[0])
        return {**state, "files": files}

    def load_state_dict(self, state: dict[str, Any], folder: Path, n_streams: int, ranks: Ranks, model: Any) -> None:
        """Restore this rank's streams; the number of ranks may differ from the one that wrote the state.

        Without a file that any rank needs, the memory of all ranks is empty.

        Args:
            state: as `state_dict` returned it, of any number of ranks.
            folder: folder of the checkpoint.
            n_streams: B of all ranks.
            ranks: the processes of the run.
            model: whose memory it must be.

        Raises:
            OptionError: a file is damaged.
        """
        self.memory, self.next_number = None, state["next_number"]
        first, end = part_of_streams(n_streams, ranks.rank, ranks.world_size)
        parts, files = [state["memory"]], named_files({"training_memory": state})
        if files:
            bounds = [part_of_streams(n_streams, part, len(files)) for part in range(len(files))]
            paths = [folder / file for file, of in zip(files, bounds, strict=True) if of[0] < end and first < of[1]]
            if ranks.largest(not all(path.exists() for path in paths)):
                return
            parts = [read_file(path, "resume") for path in paths]
        if parts[0]:
            joined = join_streams([model.state_class.from_state_dict(part) for part in parts])
            self.memory = joined.streams(first - joined.first_column, end - joined.first_column)


def join_streams(memories: Sequence[State]) -> State:
    """Join the memories of neighbouring streams."""
    return memories[0] if len(memories) == 1 else type(memories[0]).join(memories)  # type: ignore[arg-type]


def scored_positions(loss: str, T: int, seed: int, step: int) -> slice | Tensor:
    """Return the positions of a segment that count for the training loss; half of an odd number is rounded up.

    Args:
        loss: full, half (the last) or random_half.
        T: number of positions.
        seed: seed of the run.
        step: number of steps before this one, or of their segments where a step has several; with the seed alone it
            decides what is drawn, without replacement.
    """
    if loss == "random_half":
        return torch.from_numpy(np.random.default_rng([seed, step]).permutation(T)[T // 2 :])
    return slice(T // 2 if loss == "half" else 0, T)


def compiled(score: Any, backend: str = "inductor") -> Any:
    """Return a compiled function whose backward pass is without autocast, as `manual_backward` runs it.

    Args:
        score: the function.
        backend: of torch.compile.
    """
    options: Any = torch._functorch.config
    options.backward_pass_autocast = "off"  # read when the function is first called
    # Here, since as a decorator it imports torch._dynamo, which takes as long as torch.
    for owner, method in UNCOMPILED:
        setattr(owner, method, torch.compiler.disable(getattr(owner, method)))
    return torch.compile(score, backend=backend)


class TokenLoss(Metric):
    """Sums over the tokens of a split: of losses in nats, of bytes (nan if their number is not known), and of tokens.

    They are in float64, and on the device of the losses if it has that type: adding does not wait for a GPU.
    torchmetrics' Perplexity is not used: it needs all logits, sums in float32 and becomes infinite when one
    token has probability 0.
    """

    full_state_update = False
    sums: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("sums", torch.zeros(3, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, nll: Tensor, n_bytes: Tensor) -> None:
        """Add the losses of some tokens, and their number of bytes."""
        device = torch.device("cpu") if nll.device.type in WITHOUT_FLOAT64 else nll.device
        self.to(device)
        self.sums[0] += nll.detach().to(device).double().sum()
        self.sums[1] += n_bytes.to(device)
        self.sums[2] += nll.numel()

    def compute(self) -> list[float]:
        """Return the three sums over all ranks."""
        return self.sums.tolist()


class LanguageModelModule(L.LightningModule):
    """Trains and evaluates a language model on ordered streams.

    Training and evaluation have separate memories. Neither is a buffer (see `Memory`). `training_step` does the whole
    step (manual optimization of Lightning): with `trainer.stream_groups` there are several backward passes in one.

    With `trainer.compile` training segments are scored through `torch.compile`, with a memory of static shape. While
    the memory fills, segments are scored uncompiled.

    Args:
        model: scores tokens, see `LanguageModel`.
        config: config of the run.
        vocabulary: its level decides between bits per character and perplexity.
        evaluation_lengths: lengths of validation and test.
        ranks: the processes of the run.

    Attributes:
        metrics: latest val/… and test/… values in float64 (Lightning rounds its own to float32).
        loss: mean training loss of this rank's streams in the last step, in nats.
        share_of_batch: corrects DDP's mean for ranks with fewer streams: the mean over ranks of share_of_batch · loss
            is the loss of the batch.
        gradient_norm: global norm before clipping in the last step.
        finite: whether loss and gradients of all steps were finite; a tensor on the device of the model, since reading
            it makes the CPU wait for a GPU.
    """

    evaluation_loss: TokenLoss

    def __init__(
        self,
        model: Model,
        config: Config,
        vocabulary: Vocabulary,
        evaluation_lengths: Lengths,
        ranks: Ranks = Ranks(),  # noqa: B008 - frozen
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model, self.config, self.ranks, self.evaluation_lengths = model, config, ranks, evaluation_lengths
        self.level, byte_lengths = vocabulary.level, vocabulary.byte_lengths
        # No buffer: DDP would broadcast it before every step.
        self.byte_lengths_V = None if byte_lengths is None else torch.from_numpy(byte_lengths)
        self.training_memory, self.evaluation_memory = MemoryHolder(), MemoryHolder()
        self._evaluation_score: Any = None  # a method: a model here would be a second submodule
        self.__dict__["evaluation_loss"] = TokenLoss()  # no submodule: those move to devices that lack float64
        self._longest_segment = 0
        self.scales_gradients = config.trainer.precision == "16-mixed"
        self.score: Any = compiled(model.score) if config.trainer.compile else model.score
        self.loss = self.gradient_norm = torch.zeros(())
        self.share_of_batch = 1.0
        self.finite = torch.tensor(True)
        self.metrics: dict[str, float] = {}

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]
        cls, checkpoint_path: Any, map_location: Any = None, **kwargs: Any
    ) -> LanguageModelModule:
        """Open a checkpoint of `txl train` as a module in training mode, which Lightning's Trainer does not set."""
        trained = load_trained(checkpoint_path)
        lengths = evaluation_lengths(in_windows(trained.config))
        module = cls(trained.model.train(), trained.config, trained.vocabulary, lengths, **kwargs)
        return module if map_location is None else module.to(map_location)

    def setup(self, stage: str) -> None:
        """Take the ranks of a Trainer of one's own, which started other processes than `ranks`.

        Raises:
            OptionError: its strategy divides the weights, whose gradients could not be clipped by their norm.
        """
        trainer, dividing = self.trainer, (FSDPStrategy, ModelParallelStrategy, DeepSpeedStrategy)
        allowed = "divides the weights, and a step clips their whole gradient: use auto or ddp"
        require(not isinstance(trainer.strategy, dividing), "strategy", type(trainer.strategy).__name__, allowed)
        if trainer.world_size != self.ranks.world_size:
            group = torch.distributed.new_group(backend="gloo")
            self.ranks = Ranks(trainer.global_rank, trainer.world_size, group, trainer.local_rank)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Do one step: gradients, clipping (`on_before_optimizer_step`, called by `step`), weights, learning rate.

        Returns:
            The loss of this rank's streams, without its graph, for callbacks.
        """
        optimizer, schedule = cast("Any", self.optimizers()), cast("Any", self.lr_schedulers())
        for callback in cast("Any", self.trainer).callbacks:  # in manual optimization Lightning does not call it
            callback.on_before_zero_grad(self.trainer, self, optimizer)
        optimizer.zero_grad()
        self.add_gradients(batch)
        with torch.autocast(self.device.type, enabled=False):  # Lightning has it on in the whole `training_step`
            optimizer.step()  # calls `on_before_optimizer_step` first
        schedule.step()
        return self.loss

    def add_gradients(self, batch: Batch) -> None:
        """Add the gradients of the loss of a segment, or of all segments of a step, and store the memory after it.

        A backward pass for each group of streams frees its activations before the next one is scored. A group of b of
        the B_r streams of rank r, of W, has the loss

            mean over its tokens · b / B_r · share_of_batch        share_of_batch = W · B_r / B

        so that the gradient, which DDP averages over ranks, equals that of all B streams at once.
        """
        n, W, B_r = self.config.trainer.stream_groups, self.ranks.world_size, len(batch.targets)
        B = self.config.data.batch_size if W > 1 else B_r
        self.share_of_batch = W * B_r / B
        rank_first, rank_end = part_of_streams(B, self.ranks.rank, W)
        allowed = f"must be the streams of all {W} processes: rank {self.ranks.rank} reads {B_r}"
        require(rank_end - rank_first == B_r, "data.batch_size", B, allowed)
        memory, losses, memories = self._memory_before(batch), [], []
        for first, end in (part_of_streams(B_r, group, n) for group in range(n)):
            before = None if memory is None else memory.streams(first, end)
            nll_BP, after = self._score(batch.streams(first, end), before)
            loss = nll_BP.mean() * ((end - first) / B_r)
            losses.append(loss.detach())
            memories.append(replace(after, first_column=rank_first + first))  # a memory made in this step has 0
            with nullcontext() if len(memories) == n else self._gradients_of_this_rank():
                self.manual_backward(loss * self.share_of_batch)
        after = join_streams(memories)
        self.training_memory.store_after(batch, after)
        self.loss = torch.stack(losses).sum()

    def _score(self, batch: Batch, memory: Any) -> tuple[Tensor, Any]:
        """Return the losses at the positions that the training loss counts, [B, P], and the memory after the step."""
        k, model, counted = self.config.memory.gradient_segments, cast("Any", self.model), []
        segments = batch.split(self.config.data.segment_len, model.config.ext_len) if k else [batch]
        for i, segment in enumerate(segments):
            if k:
                memory = model.start_memory(len(segment.targets)) if memory is None else memory
                memory = replace(memory, keeps_gradient=i + 1 < len(segments))
            known: dict[str, Any] = {}
            if model.config.cutoffs and segment.known_targets is not None:
                known["known_targets_BT"] = torch.from_numpy(segment.known_targets)
            nll_BT, memory = self._scorer_for(segment, memory)(segment.tokens, segment.targets, memory, **known)
            step = self.global_step * len(segments) + i
            positions = scored_positions(self.config.loss, nll_BT.shape[1], self.config.seed, step)
            if isinstance(positions, Tensor):
                positions = positions.pin_memory() if self.device.type == "cuda" else positions
                positions = positions.to(self.device, non_blocking=True)  # of other memory the CPU waits for the copy
            counted.append(nll_BT[:, positions])
        return counted[0] if len(counted) == 1 else torch.cat(counted, dim=1), memory

    def manual_backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Compute gradients without autocast: each product has the type that it had in the forward pass."""
        with torch.autocast(self.device.type, enabled=False):
            super().manual_backward(loss, *args, **kwargs)

    def _gradients_of_this_rank(self) -> Any:
        """Return a context in which gradients are not averaged over the ranks: the last group's backward does it."""
        strategy = self.trainer.strategy
        return strategy.block_backward_sync() if isinstance(strategy, ParallelStrategy) else nullcontext()

    def _memory_before(self, batch: Batch) -> Any:
        """Return the memory before a training segment, on its device; None, or one of static shape, begins an epoch."""
        memory, model = self.training_memory.load_for(batch), cast("Any", self.model)
        if memory is not None:
            return memory.to(batch.tokens.device)  # that of a checkpoint is on the CPU
        return model.start_memory(batch.tokens.shape[0], static=True) if self.config.trainer.compile else None

    def _scorer_for(self, batch: Batch, memory: Any) -> Any:
        """Return the compiled `score` for full memories and whole segments; other shapes are not compiled."""
        model: Any = self.model
        fills = isinstance(memory, Memory) and memory.filled < model.config.memory_slots
        self._longest_segment = max(self._longest_segment, batch.tokens.shape[1])
        is_last_of_epoch = batch.tokens.shape[1] < self._longest_segment
        return model.score if fills or is_last_of_epoch else self.score

    @property
    def reads_are_free(self) -> bool:
        """Whether the CPU reads a tensor of the model without waiting for a device."""
        return self.device.type == "cpu"

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Clip by global norm; note on the device whether the norm is finite.

        DDP has averaged the gradients, so the norm is equal on all ranks, and it is not finite if the loss of any
        rank is not. With a gradient scaler (16-mixed) gradients overflow regularly and the scaler skips those steps
        itself; only the loss counts then.
        """
        limit = self.config.optimizer.clip_norm or math.inf
        self.gradient_norm = torch.nn.utils.clip_grad_norm_(self.parameters(), limit)
        value = self.loss if self.scales_gradients else self.gradient_norm
        self.finite = self.finite.to(value.device) & torch.isfinite(value)

    def configure_optimizers(self) -> Any:
        max_steps, fused = self.config.trainer.max_steps, not self.scales_gradients
        optimizer, schedule = make_optimizer(self.model, self.config.optimizer, max_steps, fused)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_start(self) -> None:
        """Compare shapes of restored moments, beyond whose end the fused step of an optimizer would write."""
        for x, moments in self.trainer.optimizers[0].state.items():
            if any(part.shape not in (x.shape, ()) for part in moments.values()):
                raise ValueError(f"moments of a weight of shape {list(x.shape)} have another shape")

    def on_train_batch_end(self, *args: Any) -> None:
        """Let a validation follow the last step too: its interval need not divide the number of steps."""
        if self.trainer.global_step >= self.trainer.max_steps:
            self.trainer.should_stop = True  # Lightning validates before it stops early

    @torch.no_grad()
    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Score a segment of the validation or the test split."""
        memory = self.evaluation_memory.load_for(batch)
        if memory is None:  # the first segment: the weights stay the same until the last
            model: Any = self.model.with_lengths(**self.evaluation_lengths.keywords())
            cached = can_cache(model) and model.config.mem_len  # keys and values: takes less time
            self._evaluation_score = (CachedTransformerXL(model) if cached else model).score
        nll_BT, memory = self._evaluation_score(batch.tokens, batch.targets, memory)
        self.evaluation_memory.store_after(batch, memory)
        self.evaluation_loss.update(nll_BT, self._count_bytes(batch.targets))

    test_step = validation_step

    def _count_bytes(self, targets_BT: Tensor) -> Tensor:
        """Return the number of bytes of tokens, without waiting for a GPU; nan if it is not known."""
        if self.byte_lengths_V is None:
            return torch.full((), math.nan, device=targets_BT.device)
        self.byte_lengths_V = self.byte_lengths_V.to(targets_BT.device)
        lengths_BT = self.byte_lengths_V[without_marks(targets_BT)]
        return torch.where((lengths_BT < 0).any(), math.nan, lengths_BT.sum())  # in float32, exact up to 2²⁴

    def on_validation_epoch_end(self) -> None:
        """Set the metrics of the validation or the test split, equal on all ranks."""
        stage = "test" if self.trainer.testing else "val"
        nll_sum, n_bytes, tokens = self.evaluation_loss.compute()
        nll, bytes_per_token = (nll_sum / tokens, n_bytes / tokens) if tokens else (math.nan, None)
        values = {f"{stage}/{name}": x for name, x in loss_metrics(nll, self.level, bytes_per_token).items()}
        self.metrics |= {**values, f"{stage}/tokens": int(tokens)}
        self.log_dict(values, logger=False, sync_dist=True)  # without sync_dist Lightning warns
        self.evaluation_memory, self._evaluation_score = MemoryHolder(), None
        self.evaluation_loss.reset()

    on_test_epoch_end = on_validation_epoch_end

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Store the training memory, or write its files and store their names."""
        checkpoint["training_memory"] = self.training_memory.state_dict(self.ranks, checkpoint["global_step"])

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore this rank's slice of the training memory; report a missing one."""
        carried, path = checkpoint["training_memory"], Path(str(self.trainer.ckpt_path))
        data, holder, folder = self.config.data, self.training_memory, path.parent
        holder.load_state_dict(carried, folder, data.batch_size, self.ranks, self.model)
        if getattr(self.model.config, "is_recurrent", True) and holder.next_number and holder.memory is None:
            n_tokens = self.config.memory.mem_len or data.segment_len
            why = f"its files are not in {folder / MEMORY}" if "files" in carried else "it was saved without"
            fills = f"it fills again over the next {n_tokens} tokens of every stream"
            differs = "and the run will differ from an uninterrupted one"
            self.ranks.report(f"resume={path} holds no training memory ({why}): {fills}, {differs}")
