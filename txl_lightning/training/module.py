"""Language model as a LightningModule for any Trainer: carried memory, training, validation and test."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any, cast

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torchmetrics import Metric

from txl_lightning.config.lengths import Lengths, evaluation_lengths, in_windows
from txl_lightning.config.schemas import Config, stored
from txl_lightning.data.streams import Batch
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.distributed.ranks import Ranks
from txl_lightning.errors import UserError, notice, require
from txl_lightning.evaluation.models import Model
from txl_lightning.evaluation.trained import model_of, read_checkpoint
from txl_lightning.evaluation.units import loss_metrics, peak_memory
from txl_lightning.model.baselines import LSTMLayer
from txl_lightning.model.embedding import TokenSoftmax
from txl_lightning.model.inference.cached import CachedTransformerXL, can_cache
from txl_lightning.model.memory import Memory
from txl_lightning.model.positions import without_marks
from txl_lightning.reporting.code import code_version
from txl_lightning.training.loaders import as_batch, check_loader, groups_of, restore_position
from txl_lightning.training.memory import CarriedMemory
from txl_lightning.training.optimizers import make_optimizer
from txl_lightning.training.version_0_5 import convert

WITHOUT_FLOAT64 = ("mps",)  # types of devices
DIVIDING_STRATEGIES = (FSDPStrategy, ModelParallelStrategy, DeepSpeedStrategy)
UNCOMPILED: tuple[tuple[Any, str], ...] = (
    (TokenSoftmax, "_add_tails"),  # the shapes differ in every call, and each would be compiled
    (
        LSTMLayer,
        "forward",
    ),  # torch compiles no LSTM, and torch 2.11 fails at one with other weights
)


class NotFiniteError(UserError):
    """Raised when the loss or the gradient of a step is not finite."""


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
        drawn = np.random.default_rng([seed, step]).permutation(T)
        return torch.from_numpy(drawn[T // 2 :])
    if loss == "half":
        return slice(T // 2, T)
    return slice(0, T)


def compiled(score: Any, backend: str = "inductor") -> Any:
    """Return a compiled function whose backward pass is without autocast, as Lightning runs it."""
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


class EndOfBatch(Callback):
    """Lets the module count and log a batch before a checkpoint callback saves it.

    Lightning calls `on_train_batch_end` of callbacks before the module's, and writes to loggers after both: a run that
    is killed between the checkpoint and the row would have a gap.
    """

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # Logged for the loggers alone: ModelCheckpoint would name its files by the step of the last validation.
        trainer._logger_connector._callback_metrics.pop("step", None)
        pl_module.finish_batch(batch, batch_idx)


class LanguageModelModule(L.LightningModule):
    """Trains and evaluates a language model on ordered streams, with any Trainer.

    Row b of a batch continues row b of the batch before. Training and evaluation have a memory each; neither is a
    buffer (see `Memory`). The config names the optimizer and its schedule, over the Trainer's number of steps.
    Every checkpoint holds the config, the vocabulary, the memory and the random states.

    With `trainer.compile` training segments are scored through `torch.compile`, with a memory of static shape. While
    the memory fills, segments are scored uncompiled.

    Args:
        model: scores tokens, see `LanguageModel`.
        config: config of the run.
        vocabulary: its level decides between bits per character and perplexity.
        evaluation_lengths: lengths of validation and test; None for the config's.
        ranks: the processes of the run; None for the Trainer's.

    Attributes:
        metrics: latest val/… and test/… values in float64.
        latest: latest train/… values.
        loss: mean training loss of the last batch, in nats.
        gradient_norm: global norm before clipping in the last step.
        finite: whether loss and gradients of all steps were finite; a tensor on the device of the model, since reading
            it makes the CPU wait for a GPU.
        tokens: number of targets trained so far, on all ranks, earlier sessions included.
        record: what else every checkpoint says about the run.
    """

    evaluation_loss: TokenLoss

    def __init__(
        self,
        model: Model,
        config: Config,
        vocabulary: Vocabulary,
        evaluation_lengths: Lengths | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.config = config
        self.vocabulary = vocabulary
        self.level = vocabulary.level
        self.ranks = ranks or Ranks()
        self.evaluation_lengths = evaluation_lengths or lengths_of(config)
        byte_lengths = vocabulary.byte_lengths
        # No buffer: DDP would broadcast it before every step.
        self.byte_lengths_V = None if byte_lengths is None else torch.from_numpy(byte_lengths)
        self.training_memory = CarriedMemory()
        self.evaluation_memory = CarriedMemory()
        self._evaluation_score: Any = None  # a method: a model here would be a second submodule
        self.__dict__["evaluation_loss"] = (
            TokenLoss()
        )  # no submodule: those move to devices that lack float64
        self._longest_segment = 0
        self.score: Any = model.score
        if config.trainer.compile:
            self.score = compiled(model.score)
        self.loss = torch.zeros(())
        self.gradient_norm = torch.zeros(())
        self.finite = torch.tensor(True)
        self.metrics: dict[str, float] = {}
        self.latest: dict[str, float] = {}
        self.record: dict[str, Any] = {}
        self.tokens = 0
        self._n_groups = 1
        self._n_streams = 0  # of all ranks; 0 before the first batch
        self._missing_batches = 0  # of the epoch, where a resumed run reads a loader from its start
        self._random_states: list[dict[str, Any]] | None = None
        self._nll_sum: Tensor | float = 0.0
        self._nll_tokens = 0
        self.restart_clock()

    @classmethod
    def load_from_checkpoint(
        cls,
        checkpoint_path: Any,
        map_location: Any = None,
        hparams_file: Any = None,
        strict: bool | None = None,
        weights_only: bool | None = None,
        **kwargs: Any,
    ) -> LanguageModelModule:
        """Open a checkpoint as a module in training mode, which Lightning's Trainer does not set.

        Args:
            checkpoint_path: path of a checkpoint of this module, whoever wrote it.
            map_location: device of the module; None for the CPU.
            hparams_file: not used, as the checkpoint has its config.
            strict: False leaves out weights that the checkpoint lacks or has too many.
            weights_only: not used, since no checkpoint is read in another way.
            kwargs: arguments of the class.

        Raises:
            OptionError: the file cannot be used.
        """
        checkpoint = read_checkpoint(checkpoint_path)
        trained = model_of(checkpoint, strict=strict is not False)
        module = cls(trained.model.train(), trained.config, trained.vocabulary, **kwargs)
        for name in ("vocabulary_given", "corpus"):
            module.record[name] = checkpoint.record.get(name)
        if map_location is None:
            return module
        return module.to(map_location)

    def setup(self, stage: str) -> None:
        """Take the ranks of the Trainer, if it started other processes than `ranks`.

        Raises:
            OptionError: its strategy divides the weights, whose gradients could not be clipped by their norm.
        """
        trainer = self.trainer
        allowed = "divides the weights, and a step clips their whole gradient: use auto or ddp"
        divides = isinstance(trainer.strategy, DIVIDING_STRATEGIES)
        require(not divides, "strategy", type(trainer.strategy).__name__, allowed)
        if trainer.world_size != self.ranks.world_size:
            group = torch.distributed.new_group(backend="gloo")
            self.ranks = Ranks(trainer.global_rank, trainer.world_size, group, trainer.local_rank)
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        if not any(isinstance(callback, EndOfBatch) for callback in callbacks):
            callbacks.insert(0, EndOfBatch())

    # Training

    def configure_optimizers(self) -> Any:
        """Return the optimizer of the config, and its schedule over the Trainer's number of steps."""
        n_steps = self.trainer.estimated_stepping_batches
        options = self.config.optimizer
        if n_steps == math.inf and options.schedule == "cosine":
            notice(
                "the Trainer has no number of steps (max_steps or max_epochs): the learning rate stays constant"
            )
        if options.warmup_steps > n_steps:
            never = "is longer than the run: the learning rate stays below optimizer.lr"
            notice(f"optimizer.warmup_steps={options.warmup_steps} {never} ({n_steps} steps)")
        fused = (
            self.trainer.precision != "16-mixed"
        )  # a gradient scaler could not unscale before clipping
        optimizer, schedule = make_optimizer(self.model, options, n_steps, fused)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_start(self) -> None:
        """Check the loader; restore its position, and the random state after all that draws before the first step."""
        loader = self.trainer.train_dataloader
        check_loader(loader, self.trainer.world_size)
        self._n_groups = groups_of(loader)
        self._n_streams = 0
        self._missing_batches = 0
        if self.trainer.fit_loop.restarting:
            for optimizer in self.trainer.optimizers:
                _check_moments(optimizer)
            self._restore_position(loader)
        self._restore_random_state()
        self.restart_clock()

    def _restore_position(self, loader: Any) -> None:
        """Restore the position of the loader, also where Lightning made its iterator before it had read its state."""
        fit_loop = self.trainer.fit_loop
        if fit_loop._combined_loader_states_to_load:
            fit_loop._load_combined_loader_states()
        progress: Any = fit_loop.epoch_loop.batch_progress.current
        done = progress.processed % self.trainer.num_training_batches
        if not restore_position(loader, int(done)) and done:
            self._missing_batches = int(done)
            notice(
                "the loader cannot resume (it has no state_dict): it begins again, with an empty memory"
            )

    def on_train_epoch_start(self) -> None:
        self._missing_batches = 0

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the loss of a batch, and store the memory after it.

        Raises:
            RuntimeError: the batch is of another segment than the loop expects.
            UserError: it is not a batch.
        """
        number = (batch_idx - self._missing_batches) // self._n_groups
        batch = as_batch(batch, number)
        if batch.number != number:
            raise RuntimeError(
                f"expected segment {number}, got segment {batch.number}: streams are read in order"
            )
        return self.scaled_loss(batch)

    def scaled_loss(self, batch: Batch) -> Tensor:
        """Return the loss of a batch, scaled so that gradients add up over all streams, and store the memory.

        A batch has b of the B streams of W ranks, each in G groups over which gradients are accumulated. Lightning
        takes the mean over ranks and groups, so the loss is

            mean over its tokens · b · W · G / B
        """
        if not self._n_streams:
            self._count_streams(batch)
        memory = self._memory_before(batch)
        nll_BP, memory = self._score(batch, memory)
        self.training_memory.after(batch, memory)
        loss = nll_BP.mean()
        self.loss = loss.detach()
        share = len(batch.targets) * self.ranks.world_size * self._n_groups / self._n_streams
        return loss * share

    def _count_streams(self, first_batch: Batch) -> None:
        """Count the streams of all ranks, and give each rank its part of a restored memory."""
        n_rows = len(first_batch.targets)
        if self._n_groups > 1:
            n_rows = len(cast("Any", self.trainer.train_dataloader).streams.own)
        of_ranks = self.ranks.gather(n_rows)
        self._n_streams = sum(of_ranks)
        memory = self.training_memory
        if memory.restored is not None:
            first = sum(of_ranks[: self.ranks.rank])
            problem = memory.distribute(first, n_rows, self._n_streams, first_batch, self._n_groups)
            if problem and first_batch.number:
                self._report_missing_memory(problem)

    def _memory_before(self, batch: Batch) -> Any:
        """Return the memory before a training segment, on its device; None, or one of static shape, begins an epoch."""
        memory = self.training_memory.before(batch)
        if memory is not None:
            return memory.to(batch.tokens.device)  # a checkpoint's is on the CPU
        if self.config.trainer.compile:
            model: Any = self.model
            return model.start_memory(batch.tokens.shape[0], static=True)
        return None

    def _score(self, batch: Batch, memory: Any) -> tuple[Tensor, Any]:
        """Return the losses at the positions that the training loss counts, [B, P], and the memory after the step."""
        model: Any = self.model
        segments = [batch]
        several = self.config.memory.gradient_segments > 0
        if several:
            segments = batch.split(self.config.data.segment_len, model.config.ext_len)
            if memory is None:
                memory = model.start_memory(len(batch.targets))
        counted = []
        for i, segment in enumerate(segments):
            if several:
                memory = replace(memory, keeps_gradient=i + 1 < len(segments))
            known: dict[str, Any] = {}
            if model.config.cutoffs and segment.known_targets is not None:
                known["known_targets_BT"] = torch.from_numpy(segment.known_targets)
            score = self._scorer_for(segment, memory)
            nll_BT, memory = score(segment.tokens, segment.targets, memory, **known)
            positions = self._counted_positions(nll_BT.shape[1], i, len(segments))
            counted.append(nll_BT[:, positions])
        if len(counted) == 1:
            return counted[0], memory
        return torch.cat(counted, dim=1), memory

    def _counted_positions(self, T: int, i: int, n_segments: int) -> slice | Tensor:
        """Return the positions of segment i of this step that count for the loss, on the device of the model."""
        step = self.global_step * n_segments + i
        positions = scored_positions(self.config.loss, T, self.config.seed, step)
        if isinstance(positions, slice):
            return positions
        if self.device.type == "cuda":
            positions = positions.pin_memory()  # for a copy of other memory the CPU would wait
        return positions.to(self.device, non_blocking=True)

    def _scorer_for(self, batch: Batch, memory: Any) -> Any:
        """Return the compiled `score` for full memories and whole segments; other shapes are not compiled."""
        model: Any = self.model
        fills = isinstance(memory, Memory) and memory.filled < model.config.memory_slots
        T = batch.tokens.shape[1]
        self._longest_segment = max(self._longest_segment, T)
        if fills or self._longest_segment > T:
            return model.score
        return self.score

    def configure_gradient_clipping(
        self,
        optimizer: Any,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip as the Trainer says, else by `optimizer.clip_norm`; note on the device whether the norm is finite.

        DDP has averaged the gradients, so the norm is equal on all ranks, and it is not finite if the loss of any
        rank is not. With a gradient scaler (16-mixed) gradients overflow regularly and the scaler skips those steps
        itself; only the loss counts then.
        """
        limit = gradient_clip_val
        if limit is None:
            limit = self.config.optimizer.clip_norm
        by_value = gradient_clip_algorithm == "value"
        parameters = []
        for group in optimizer.param_groups:
            parameters += group["params"]
        most = math.inf if by_value else limit or math.inf
        self.gradient_norm = torch.nn.utils.clip_grad_norm_(parameters, most)
        if by_value:
            self.clip_gradients(optimizer, limit, "value")
        value = self.loss if self.scales_gradients else self.gradient_norm
        self.finite = self.finite.to(value.device) & torch.isfinite(value)

    @property
    def scales_gradients(self) -> bool:
        """Whether the Trainer scales gradients."""
        return getattr(self.trainer.precision_plugin, "scaler", None) is not None

    @property
    def reads_are_free(self) -> bool:
        """Whether the CPU reads a tensor of the model without waiting for a device."""
        return self.device.type == "cpu"

    def finish_batch(self, batch: Any, batch_idx: int) -> None:
        """Count the batch, log at the Trainer's interval, and let a validation follow the last step too."""
        trainer = self.trainer
        self.training_memory.confirm()
        targets = as_batch(batch, 0).targets
        self._nll_sum = self._nll_sum + self.loss * targets.numel()
        self._nll_tokens += targets.numel()
        if batch_idx % self._n_groups == 0:
            self.tokens += self._n_streams * targets.shape[1]
        if 0 < trainer.max_steps <= trainer.global_step:
            trainer.should_stop = True  # Lightning validates before it stops early
        if self.reads_are_free:
            self.check_finite()
        if (
            not trainer.fit_loop._should_accumulate()
            and trainer._logger_connector.should_update_logs
        ):
            self.check_finite()
            self._log_training()

    def check_finite(self) -> None:
        """Raise `NotFiniteError` if the loss or the gradient of a step was not finite."""
        if not bool(self.finite):
            when = f"{'in' if self.reads_are_free else 'in or before'} step {self.global_step}"
            raise NotFiniteError(f"the loss or its gradient was not finite {when}")

    def _log_training(self) -> None:
        """Log loss, its units, learning rate, gradient norm, memory length, tokens/s and peak memory.

        The loss is the mean over the tokens of all ranks since the last log entry.
        """
        recent = self.tokens - self._tokens_before
        nll_sum, n_tokens = self.ranks.total(float(self._nll_sum), self._nll_tokens)
        self.latest = {}
        for name, value in loss_metrics(nll_sum / n_tokens, self.level).items():
            self.latest[f"train/{name}"] = value
        self.latest["train/tokens_per_second"] = recent / (time.perf_counter() - self._since)
        self.latest["train/learning_rate"] = self.trainer.optimizers[0].param_groups[0]["lr"]
        self.latest["train/gradient_norm"] = float(self.gradient_norm)
        self.latest["train/memory_length"] = float(getattr(self.training_memory.value, "filled", 0))
        self.latest["train/peak_memory_bytes"] = self.ranks.largest(peak_memory(self.device))
        self.log_dict(self.latest, logger=False)  # for callbacks
        for logger in self.trainer.loggers:
            logger.log_metrics({**self.latest, "tokens": self.tokens}, step=self.global_step)
            logger.save()
        self._nll_sum = 0.0
        self._nll_tokens = 0
        self.restart_clock()

    def _log(self, values: dict[str, float], **how: Any) -> None:
        """Log values in float64 with the axes `tokens` and `step`."""
        axes = {"tokens": self.tokens, "step": self.trainer.global_step}
        device = "cpu" if self.device.type in WITHOUT_FLOAT64 else self.device
        for name, value in {**values, **axes}.items():
            self.log(
                name, torch.tensor(value, dtype=torch.float64, device=device), batch_size=1, **how
            )

    def restart_clock(self) -> None:
        """Exclude the time since the last log entry from tokens/s."""
        self._since = time.perf_counter()
        self._tokens_before = self.tokens

    # Validation and test

    def on_validation_start(self) -> None:
        """Check the loader.

        Raises:
            UserError: there are several, or one that joins batches.
        """
        loaders = (
            self.trainer.test_dataloaders if self.trainer.testing else self.trainer.val_dataloaders
        )
        if isinstance(loaders, (list, tuple)):
            if len(loaders) > 1:
                raise UserError(
                    f"{len(loaders)} loaders of validation: give one, and call validate for each other"
                )
            loaders = loaders[0]
        check_loader(loaders, self.trainer.world_size)

    on_test_start = on_validation_start

    def on_validation_epoch_start(self) -> None:
        """Begin without a memory and without sums, also after a validation that was broken off."""
        self.evaluation_memory = CarriedMemory()
        self._evaluation_score = None
        self.evaluation_loss.reset()

    on_test_epoch_start = on_validation_epoch_start

    @torch.no_grad()
    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Score a segment of the validation or the test split."""
        batch = as_batch(batch, batch_idx)
        memory = self.evaluation_memory.before(batch)
        if self._evaluation_score is None:  # the weights stay the same until the last segment
            model: Any = self.model.with_lengths(**self.evaluation_lengths.keywords())
            if can_cache(model) and model.config.mem_len:  # keys and values: takes less time
                model = CachedTransformerXL(model)
            self._evaluation_score = model.score
        nll_BT, memory = self._evaluation_score(batch.tokens, batch.targets, memory)
        self.evaluation_memory.after(batch, memory)
        self.evaluation_loss.update(nll_BT, self._count_bytes(batch.targets))

    test_step = validation_step

    def _count_bytes(self, targets_BT: Tensor) -> Tensor:
        """Return the number of bytes of tokens, without waiting for a GPU; nan if it is not known."""
        if self.byte_lengths_V is None:
            return torch.full((), math.nan, device=targets_BT.device)
        self.byte_lengths_V = self.byte_lengths_V.to(targets_BT.device)
        lengths_BT = self.byte_lengths_V[without_marks(targets_BT)]
        return torch.where(
            (lengths_BT < 0).any(), math.nan, lengths_BT.sum()
        )  # in float32, exact up to 2²⁴

    def on_validation_epoch_end(self) -> None:
        """Log the metrics of the validation or the test split, equal on all ranks."""
        stage = "test" if self.trainer.testing else "val"
        nll_sum, n_bytes, n_tokens = self.evaluation_loss.compute()
        nll = math.nan
        bytes_per_token = None
        if n_tokens:
            nll = nll_sum / n_tokens
            bytes_per_token = n_bytes / n_tokens
        values: dict[str, float] = {}
        for name, value in loss_metrics(nll, self.level, bytes_per_token).items():
            values[f"{stage}/{name}"] = value
        values[f"{stage}/tokens"] = int(n_tokens)
        self.metrics.update(values)
        self._log(values, sync_dist=self.ranks.world_size > 1)
        self.on_validation_epoch_start()
        self.restart_clock()

    on_test_epoch_end = on_validation_epoch_end

    # Checkpoints

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the config and the vocabulary, and unless it is of weights alone the state of training.

        Raises:
            NotFiniteError: the loss or the gradient of a step was not finite.
        """
        self.check_finite()
        checkpoint["txl_lightning"] = {
            **code_version(),
            "config": stored(self.config),
            "vocabulary": self.vocabulary.state_dict(),
            **self.record,
        }
        if "optimizer_states" in checkpoint:
            checkpoint["txl_lightning"]["training"] = self._training_state()

    def _training_state(self) -> dict[str, Any]:
        progress: Any = self.trainer.fit_loop.epoch_loop.batch_progress.current
        if progress.ready > progress.processed:  # an error in the middle of a step
            self.training_memory.undo()
        left = progress.processed % self.trainer.accumulate_grad_batches
        if left and progress.processed < self.trainer.num_training_batches:
            notice(
                f"checkpoint within an accumulation: the gradients of {left} batches are not in it"
            )
        return {
            "memory": self.training_memory.state_dict(self.ranks),
            "random": self.ranks.gather(random_state()),
            "tokens": self.tokens,
            "since": self.ranks.gather((float(self._nll_sum), self._nll_tokens)),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the state of training; report a missing memory.

        Raises:
            UserError: the checkpoint has none.
        """
        if self.trainer.state.fn != TrainerFn.FITTING:
            return
        if "training_memory" in checkpoint:
            best = [
                callback.state_key
                for callback in self._checkpoints()
                if callback.filename == "best"
            ]
            convert(checkpoint, self.trainer.accumulate_grad_batches, best[0] if best else None)
        state = checkpoint.get("txl_lightning", {}).get("training")
        if state is None:
            raise UserError(
                "the checkpoint has no state of training: open its weights with load_from_checkpoint"
            )
        self.training_memory.load_state_dict(state["memory"], self.model)
        self._random_states = state["random"]
        self.tokens = state["tokens"]
        sums = state["since"]
        if len(sums) == self.ranks.world_size:
            self._nll_sum, self._nll_tokens = sums[self.ranks.rank]
        elif self.ranks.rank == 0:  # another number of ranks: the first one takes the sums of all
            self._nll_sum = sum(nll for nll, _ in sums)
            self._nll_tokens = sum(n for _, n in sums)
        is_recurrent = getattr(self.model.config, "is_recurrent", True)
        if (
            is_recurrent
            and state["memory"]["next_number"]
            and self.training_memory.restored is None
        ):
            self._report_missing_memory("it was saved without")

    def _checkpoints(self) -> list[ModelCheckpoint]:
        callbacks: list[Callback] = self.trainer.callbacks  # type: ignore[attr-defined]
        return [callback for callback in callbacks if isinstance(callback, ModelCheckpoint)]

    def _report_missing_memory(self, why: str) -> None:
        n_tokens = self.config.memory.mem_len or self.config.data.segment_len
        fills = f"it fills again over the next {n_tokens} tokens of every stream"
        self.ranks.report(
            f"resume={self.trainer.ckpt_path} holds no training memory ({why}): {fills}, "
            "and the run will differ from an uninterrupted one"
        )

    def _restore_random_state(self) -> None:
        """Restore this rank's random state, so that a resumed run draws the same dropout masks.

        If more ranks resume than wrote the checkpoint, the additional ones get a new seed.
        """
        states, self._random_states = self._random_states, None
        if states is None:
            return
        if self.ranks.rank >= len(states):
            L.seed_everything(self.ranks.seed(self.config.seed, self.global_step), verbose=False)
            return
        state = states[self.ranks.rank]
        torch.set_rng_state(state["cpu"])
        if state.get("cuda") is not None and torch.cuda.is_available():
            torch.cuda.set_rng_state(state["cuda"])


def _check_moments(optimizer: torch.optim.Optimizer) -> None:
    """Compare shapes of restored moments, beyond whose end the fused step of an optimizer would write."""
    for weight, moments in optimizer.state.items():
        for moment in moments.values():
            if isinstance(moment, Tensor) and moment.shape not in (weight.shape, ()):
                raise ValueError(
                    f"moments of a weight of shape {list(weight.shape)} have another shape"
                )


def lengths_of(config: Config) -> Lengths:
    """Return the lengths of validation and test."""
    return evaluation_lengths(in_windows(config))


def random_state() -> dict[str, Any]:
    """Return the states of torch's generators: of the CPU and of this process's GPU."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state()
    return states
