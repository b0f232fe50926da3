"""Language model as a LightningModule for any Trainer: carried memory, training, validation and test."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from tempfile import NamedTemporaryFile
from typing import Any, cast

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.core.optimizer import _MockOptimizer
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from txl_lightning.config.lengths import Lengths, evaluation_lengths, in_windows
from txl_lightning.config.schemas import Config, plain, stored
from txl_lightning.data.streams import Batch
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.errors import UserError, notice, require
from txl_lightning.evaluation.models import Model, carries_state
from txl_lightning.evaluation.trained import model_of, read_checkpoint
from txl_lightning.evaluation.units import loss_metrics, peak_memory
from txl_lightning.model.inference.cached import CachedTransformerXL, can_cache
from txl_lightning.model.memory import Memory
from txl_lightning.model.positions import without_marks
from txl_lightning.ranks import Ranks
from txl_lightning.reporting.code import code_version
from txl_lightning.training import Values
from txl_lightning.training.checkpoints import NO_STATE
from txl_lightning.training.loaders import (
    as_batch,
    check_loader,
    groups_of,
    move_to,
    restore_position,
)
from txl_lightning.training.loggers import log_values
from txl_lightning.training.memory import CarriedMemory, random_state, restore_random_state
from txl_lightning.training.optimizers import check_moments, follow_schedule, make_optimizer
from txl_lightning.training.scoring import compiled, scored_positions

WITHOUT_FLOAT64 = ("mps",)  # device types
DIVIDING_STRATEGIES = (FSDPStrategy, ModelParallelStrategy, DeepSpeedStrategy)


class NotFiniteError(UserError):
    """Raised when a step's loss or gradient is not finite."""

    advice = (
        "try a lower optimizer.lr, with initial_weights= a checkpoint in {directory}/checkpoints"
    )


class EndOfBatch(Callback):
    """Lets the module count and log a batch before a checkpoint callback saves it.

    Lightning calls callbacks' `on_train_batch_end` before the module's, and writes to loggers after both: a run killed
    between the checkpoint and the row would have a gap.
    """

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # Logged for the loggers alone: ModelCheckpoint would name its files by the last validation's step.
        trainer._logger_connector._callback_metrics.pop("step", None)
        pl_module.finish_batch(batch, batch_idx)


class LanguageModelModule(LightningModule):
    """Trains and evaluates a language model on ordered streams, with any Trainer.

    Row b in a batch continues row b in the batch before. Training and evaluation have a memory each; neither is a
    buffer (see `Memory`). The config names the optimizer and its schedule, over the Trainer's number of steps. Every
    checkpoint holds the config, the vocabulary, the memory and the random states; loggers get the config.

    With `trainer.compile` training segments are scored through `torch.compile`, with a static memory shape. While the
    memory fills, segments are scored uncompiled.

    Args:
        model: scores tokens, see `LanguageModel`.
        config: the run's config.
        vocabulary: its level decides between bits per character and perplexity.
        ranks: the run's processes; None for the Trainer's.

    Attributes:
        evaluation_lengths: lengths of validation and test.
        metrics: latest val/… and test/… values in float64.
        latest: latest train/… values.
        loss: the last batch's mean training loss, in nats.
        gradient_norm: global norm before clipping in the last step.
        finite: whether all steps' losses and gradients were finite; a tensor on the model's device, since reading it
            makes the CPU wait for a GPU.
        tokens: targets trained so far, on all ranks, including earlier sessions.
        record: what else every checkpoint says about the run.
    """

    def __init__(
        self,
        model: Model,
        config: Config,
        vocabulary: Vocabulary,
        ranks: Ranks | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters({**plain(config), **code_version()})
        self.model = model
        self.config = config
        self.vocabulary = vocabulary
        self.level = vocabulary.level
        self.evaluation_lengths = lengths_of(config)
        self.ranks = ranks or Ranks()
        self.training_memory = CarriedMemory()
        self.evaluation_memory = CarriedMemory()
        self.score: Any = None  # compiled
        self.loss = torch.zeros(())
        self.gradient_norm = torch.zeros(())
        self.finite = torch.tensor(True)
        self.metrics: dict[str, float] = {}
        self.latest: dict[str, float] = {}
        self.record: Values = {}
        self.tokens = 0
        # No buffer: DDP would broadcast it before every step.
        self.byte_lengths_V: Tensor | None = None
        if vocabulary.byte_lengths is not None:
            self.byte_lengths_V = torch.from_numpy(vocabulary.byte_lengths)
        self._n_groups = 1
        self._restored: Values | None = (
            None  # state of training of a checkpoint, until training starts
        )
        self._n_streams = 0  # on all ranks; 0 before the first batch
        self._missing_batches = 0  # in the epoch, where a resumed run reads a loader from its start
        self._nll_sum: Tensor | float = 0.0
        self._nll_tokens = 0
        self.restart_clock()
        self.on_validation_epoch_start()

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
        """Open a checkpoint as a module in training mode; Lightning's Trainer does not set it.

        Args:
            checkpoint_path: path or open file of a checkpoint of this module, whoever wrote it.
            map_location: the module's device; None, a mapping or a function for the CPU.
            hparams_file: not used, as the checkpoint has its config.
            strict: False leaves out weights that the checkpoint lacks or has too many.
            weights_only: not used, since no checkpoint is read in another way.
            kwargs: arguments for the class.

        Raises:
            OptionError: the file cannot be used.
        """
        if hasattr(checkpoint_path, "read"):
            with NamedTemporaryFile(suffix=".ckpt") as file:
                file.write(checkpoint_path.read())
                file.flush()
                return cls.load_from_checkpoint(file.name, map_location, strict=strict, **kwargs)
        checkpoint = read_checkpoint(checkpoint_path)
        trained = model_of(checkpoint, strict=strict is not False)
        module = cls(
            trained.model.train(),
            trained.config,
            trained.vocabulary,
            **kwargs,
        )
        for name in ("vocabulary_given", "corpus"):
            module.record[name] = checkpoint.record.get(name)
        if isinstance(map_location, (str, torch.device)):
            module.to(map_location)
        return module

    @property
    def lr(self) -> float:
        """The schedule's largest learning rate, `optimizer.lr`, which Lightning's learning rate finder sets."""
        return self.config.optimizer.lr

    @lr.setter
    def lr(self, value: float) -> None:
        self.config.optimizer.lr = value

    def setup(self, stage: str) -> None:
        """Use the Trainer's ranks, if it started other processes than `ranks`.

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
        """Return the config's optimizer, and its schedule over the Trainer's number of steps."""
        n_steps = self.trainer.estimated_stepping_batches
        options = self.config.optimizer
        if n_steps == math.inf and options.schedule == "cosine":
            notice(
                "the Trainer has no number of steps (max_steps or max_epochs): the learning rate stays constant"
            )
        if options.warmup_steps > n_steps:
            never = "is longer than the run: the learning rate stays below optimizer.lr"
            notice(f"optimizer.warmup_steps={options.warmup_steps} {never} ({n_steps} steps)")
        # A gradient scaler could not unscale a fused step's gradients before they are clipped.
        fused = self.trainer.precision != "16-mixed"
        optimizer, schedule = make_optimizer(self.model, options, n_steps, fused)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_start(self) -> None:
        """Check the loader; restore its position, and the random state after all that draws before the first step."""
        trainer = self.trainer
        if not trainer.optimizers or isinstance(trainer.optimizers[0], _MockOptimizer):
            raise UserError("configure_optimizers returned no optimizer: nothing would be trained")
        loader = trainer.train_dataloader
        check_loader(loader, trainer.world_size, carries_state(self.config))
        self._n_groups = groups_of(loader)
        self._n_streams = 0
        self._missing_batches = 0
        self.finite = torch.tensor(True)
        if self.config.trainer.compile:
            self.score = compiled(self.model.score)
        if self._restored is not None:
            for optimizer in trainer.optimizers:
                check_moments(optimizer)
            for scheduler_config in trainer.lr_scheduler_configs:
                follow_schedule(scheduler_config.scheduler)
            self._restore_position(loader, self._restored["groups"])
            seeds = (self.config.seed, self.global_step)
            restore_random_state(self._restored["random"], self.ranks, *seeds)
            self._restored = None
        self.restart_clock()

    def _restore_position(self, loader: Any, groups_before: int) -> None:
        """Restore the loader's position, also where Lightning made its iterator before it had read its state."""
        fit_loop = self.trainer.fit_loop
        if fit_loop._combined_loader_states_to_load:
            fit_loop._load_combined_loader_states()
        progress: Any = fit_loop.epoch_loop.batch_progress
        for count in (progress.total, progress.current):
            move_to(count, count.processed * self._n_groups // groups_before)
        done = 0
        if fit_loop.restarting:
            n_batches = self.trainer.num_training_batches
            done = int(progress.current.processed % n_batches)
            is_over = progress.is_last_batch and progress.current.processed == n_batches
            # The epoch had more batches before.
            if progress.current.processed >= n_batches and not is_over:
                move_to(progress.current, done)
        if not restore_position(loader, done) and done:
            self._missing_batches = done
            notice(
                "the loader cannot resume (it has no state_dict): it begins again, with an empty memory"
            )

    def on_train_epoch_start(self) -> None:
        self._missing_batches = 0

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return a batch's loss, and store the memory after it.

        Raises:
            RuntimeError: the loop expects another segment.
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
        """Return a batch's loss, scaled so that gradients add up over all streams, and store the memory.

        A batch has b among the B streams that W ranks share, each in G groups over which gradients are accumulated.
        Lightning takes the mean over ranks and groups, so the loss is

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
        """Count the streams on all ranks, and give each rank its part of a restored memory."""
        n_rows = len(first_batch.targets)
        if self._n_groups > 1:
            n_rows = len(cast("Any", self.trainer.train_dataloader).streams.own)
        of_ranks = self.ranks.gather(n_rows)
        self._n_streams = sum(of_ranks)
        first = sum(of_ranks[: self.ranks.rank])
        problem = self.training_memory.distribute(
            first, n_rows, self._n_streams, first_batch, self._n_groups
        )
        if problem and carries_state(self.config) and first_batch.number:
            self.ranks.report(
                f"resume={self.trainer.ckpt_path} holds no training memory ({problem}): it fills again, "
                "and the run will differ from an uninterrupted one"
            )

    def _memory_before(self, batch: Batch) -> Any:
        """Return the memory before a training segment, on its device; None, or one with static shape, begins an
        epoch.
        """
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
                memory = replace(
                    memory,
                    keeps_gradient=i + 1 < len(segments),
                )
            known: Values = {}
            if model.config.cutoffs and segment.known_targets is not None:
                known["known_targets_BT"] = torch.from_numpy(segment.known_targets)
            score = self._scorer_for(segment, memory)
            nll_BT, memory = score(segment.tokens, segment.targets, memory, **known)
            positions = self._counted_positions(nll_BT.shape[1], i, len(segments))
            counted.append(nll_BT[:, positions])
        return torch.cat(counted, dim=1), memory

    def _scorer_for(self, batch: Batch, memory: Any) -> Any:
        """Return the compiled `score` for full memories and whole segments; other shapes are not compiled."""
        model: Any = self.model
        if self.score is None:
            return model.score
        fills = isinstance(memory, Memory) and memory.filled < model.config.memory_slots
        if fills or batch.targets.shape[1] < self.config.data.segment_len:
            return model.score
        return self.score

    def _counted_positions(self, T: int, i: int, n_segments: int) -> slice | Tensor:
        """Return the positions in this step's segment i that count for the loss, on the model's device."""
        step = self.global_step * n_segments + i
        positions = scored_positions(self.config.loss, T, self.config.seed, step)
        if isinstance(positions, slice):
            return positions
        if self.device.type == "cuda":
            positions = positions.pin_memory()  # the CPU would wait for a copy from pageable memory
        return positions.to(self.device, non_blocking=True)

    def configure_gradient_clipping(
        self,
        optimizer: Any,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip as the Trainer says, else by `optimizer.clip_norm`; note on the device whether the norm is finite.

        DDP has averaged the gradients, so the norm is equal on all ranks, and it is not finite if any rank's loss is
        not. With a gradient scaler (16-mixed) gradients overflow regularly and the scaler skips those steps itself;
        only the loss counts then.
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
        has_scaler = getattr(self.trainer.precision_plugin, "scaler", None) is not None
        value = self.loss if has_scaler else self.gradient_norm
        self.finite = self.finite.to(value.device) & torch.isfinite(value)

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
        is_step = not trainer.fit_loop._should_accumulate()
        if is_step and trainer._logger_connector.should_update_logs:
            self.check_finite()
            self._log_training()

    def check_finite(self) -> None:
        """Raise `NotFiniteError` if the loss or the gradient of a step was not finite; a GPU is waited for."""
        if not bool(self.finite):
            raise NotFiniteError(
                f"the loss or its gradient was not finite in or before step {self.global_step}"
            )

    def _log_training(self) -> None:
        """Log loss, its units, learning rate, gradient norm, memory length, tokens/s and peak memory.

        The loss is the mean over all ranks' tokens since the last log entry.
        """
        recent = self.tokens - self._tokens_before
        nll_sum, n_tokens = self.ranks.total(
            float(self._nll_sum),
            self._nll_tokens,
        )
        self.latest = {}
        for unit, loss in loss_metrics(nll_sum / n_tokens, self.level).items():
            self.latest[f"train/{unit}"] = loss
        self.latest["train/tokens_per_second"] = recent / (time.perf_counter() - self._since)
        self.latest["train/learning_rate"] = self.trainer.optimizers[0].param_groups[0]["lr"]
        self.latest["train/gradient_norm"] = float(self.gradient_norm)
        self.latest["train/memory_length"] = float(getattr(self.training_memory.value, "filled", 0))
        self.latest["train/peak_memory_bytes"] = self.ranks.largest(peak_memory(self.device))
        self.log_dict(self.latest, logger=False)  # for callbacks
        log_values(self.trainer, {**self.latest, "tokens": self.tokens})
        self._nll_sum = 0.0
        self._nll_tokens = 0
        self.restart_clock()

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
        trainer = self.trainer
        loaders: Any = trainer.test_dataloaders if trainer.testing else trainer.val_dataloaders
        if isinstance(loaders, (list, tuple, dict)) and len(loaders) > 1:
            raise UserError(
                f"{len(loaders)} validation loaders: give one, and call validate for each further one"
            )
        check_loader(loaders, trainer.world_size, carries_state(self.config))

    on_test_start = on_validation_start

    def on_validation_epoch_start(self) -> None:
        """Begin without a memory and without sums, also after a validation that was broken off."""
        self.evaluation_memory = CarriedMemory()
        self._evaluation_score: Any = None  # a method: a model here would be a second submodule
        self.evaluation_sums = torch.zeros(3, dtype=torch.float64)

    on_test_epoch_start = on_validation_epoch_start

    @torch.no_grad()
    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Score a segment in the validation or the test split."""
        batch = as_batch(batch, batch_idx)
        memory = self.evaluation_memory.before(batch)
        if self._evaluation_score is None:  # the weights stay the same until the last segment
            model: Any = self.model.with_lengths(**self.evaluation_lengths.keywords())
            if can_cache(model) and model.config.mem_len:  # keys and values: takes less time
                model = CachedTransformerXL(model)
            self._evaluation_score = model.score
        nll_BT, memory = self._evaluation_score(batch.tokens, batch.targets, memory)
        self.evaluation_memory.after(batch, memory)
        self.add_losses(nll_BT, batch.targets)

    test_step = validation_step

    def add_losses(self, nll_BT: Tensor, targets_BT: Tensor) -> None:
        """Add losses in nats, their number of bytes (nan if it is not known) and tokens to the split's sums.

        They are in float64, and on the losses' device if it has that type: adding does not wait for a GPU.
        torchmetrics' Perplexity is not used: it needs all logits, sums in float32 and becomes infinite when one token
        has probability 0.
        """
        device = with_float64(nll_BT.device)
        self.evaluation_sums = self.evaluation_sums.to(device)
        self.evaluation_sums[0] += nll_BT.to(device).double().sum()
        self.evaluation_sums[1] += self._count_bytes(targets_BT).to(device)
        self.evaluation_sums[2] += nll_BT.numel()

    def _count_bytes(self, targets_BT: Tensor) -> Tensor:
        """Return how many bytes the tokens have, without waiting for a GPU; nan if it is not known."""
        if self.byte_lengths_V is None:
            return torch.full((), math.nan, device=targets_BT.device)
        self.byte_lengths_V = self.byte_lengths_V.to(targets_BT.device)
        lengths_BT = self.byte_lengths_V[without_marks(targets_BT)]
        # In float32, exact up to 2²⁴.
        return torch.where(
            (lengths_BT < 0).any(),
            math.nan,
            lengths_BT.sum(),
        )

    def on_validation_epoch_end(self) -> None:
        """Log the validation or test metrics, equal on all ranks."""
        stage = "test" if self.trainer.testing else "val"
        nll_sum, n_bytes, n_tokens = self.ranks.total(*self.evaluation_sums.tolist())
        n_scored = n_tokens or math.nan  # from an empty loader
        values: dict[str, float] = {f"{stage}/tokens": int(n_tokens)}
        losses = loss_metrics(nll_sum / n_scored, self.level, n_bytes / n_scored)
        for unit, loss in losses.items():
            values[f"{stage}/{unit}"] = loss
        self.metrics.update(values)
        several = self.ranks.world_size > 1
        device = with_float64(self.device)
        axes = {"tokens": self.tokens, "step": self.trainer.global_step}
        for name, value in {**values, **axes}.items():
            exact = torch.tensor(value, dtype=torch.float64, device=device)
            self.log(name, exact, batch_size=1, sync_dist=several)
        self.on_validation_epoch_start()
        self.restart_clock()

    on_test_epoch_end = on_validation_epoch_end

    # Checkpoints

    def on_save_checkpoint(self, checkpoint: Values) -> None:
        """Add the config and the vocabulary, and unless only weights are saved the training state.

        Raises:
            NotFiniteError: a step's loss or gradient was not finite.
        """
        self.check_finite()
        checkpoint.pop(self.CHECKPOINT_HYPER_PARAMS_KEY, None)  # the config again
        checkpoint["txl_lightning"] = {
            **code_version(),
            "config": stored(self.config),
            "vocabulary": self.vocabulary.state_dict(),
            **self.record,
        }
        if "optimizer_states" in checkpoint:
            checkpoint["txl_lightning"]["training"] = self._training_state()

    def _training_state(self) -> Values:
        trainer = self.trainer
        progress: Any = trainer.fit_loop.epoch_loop.batch_progress.current
        if progress.ready > progress.processed:  # an error in the middle of a step
            self.training_memory.undo()
        left = progress.processed % trainer.accumulate_grad_batches
        if left and progress.processed < trainer.num_training_batches:
            notice(
                f"checkpoint within an accumulation: the gradients of {left} batches are not in it"
            )
        return {
            "groups": self._n_groups,
            "memory": self.training_memory.state_dict(self.ranks),
            "random": self.ranks.gather(random_state()),
            "tokens": self.tokens,
            "since": self.ranks.gather((float(self._nll_sum), self._nll_tokens)),
        }

    def on_load_checkpoint(self, checkpoint: Values) -> None:
        """Restore the training state.

        Raises:
            UserError: the checkpoint has none.
        """
        if self.trainer.state.fn != TrainerFn.FITTING:
            return
        state = checkpoint.get("txl_lightning", {}).get("training")
        if state is None:
            raise UserError(
                f"the checkpoint {NO_STATE}: open its weights with load_from_checkpoint"
            )
        self.training_memory.load_state_dict(state["memory"], self.model)
        self._restored = state
        self.tokens = state["tokens"]
        self._nll_sum = 0.0
        self._nll_tokens = 0
        # With fewer ranks than before, a rank takes several sums.
        for nll_sum, n_tokens in state["since"][self.ranks.rank :: self.ranks.world_size]:
            self._nll_sum += nll_sum
            self._nll_tokens += n_tokens


def with_float64(device: torch.device) -> torch.device:
    """Return the device, or the CPU for one that has no float64."""
    return torch.device("cpu") if device.type in WITHOUT_FLOAT64 else device


def lengths_of(config: Config) -> Lengths:
    """Return the lengths for validation and test."""
    return evaluation_lengths(in_windows(config))
