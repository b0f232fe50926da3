"""Parts of a training run, built from its config: module, callbacks, logger, trainer."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger, WandbLogger
from lightning.pytorch.strategies import DDPStrategy
from omegaconf import OmegaConf

from txl_lightning.config.lengths import evaluation_lengths, extended_context, trained_clamp
from txl_lightning.config.schemas import Config, plain
from txl_lightning.data.datamodule import StreamsDataModule
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.distributed.ranks import Ranks, environment, n_processes
from txl_lightning.errors import OptionError, require
from txl_lightning.files import write_text
from txl_lightning.model.transformer_xl import TransformerXL
from txl_lightning.runs.models import make_model
from txl_lightning.runs.storage import DurableCheckpoints
from txl_lightning.runs.threads import resolve_threads
from txl_lightning.runs.trained import read_checkpoint
from txl_lightning.training import wandb_run
from txl_lightning.training.checkpointing import Checkpoints, RandomState, RunRecord, StepWeights
from txl_lightning.training.curve_files import csv_logger
from txl_lightning.training.curves import ContextCurves, TrainingCurves, ValidationCurve
from txl_lightning.training.module import LanguageModelModule
from txl_lightning.training.progress import ProgressBar, ProgressFile
from txl_lightning.training.resume import (
    check_same_run,
    clear_earlier_run,
    continues_in,
    find_checkpoint,
    is_validated_alike,
    online_run,
)
from txl_lightning.training.stopping import CleanStop, SkippedSteps, StopSignals
from txl_lightning.training.weights import check_weights, describe_change


@dataclass
class TrainingRun:
    """Everything that one rank needs to train, evaluate and write its results."""

    config: Config
    directory: Path
    ranks: Ranks
    data: StreamsDataModule
    module: LanguageModelModule
    trainer: L.Trainer
    curves: TrainingCurves
    skipped: SkippedSteps
    checkpoints: Checkpoints | None
    resumed_from: Path | None

    @property
    def logger(self) -> Logger | None:
        """Logger of the run; None on all ranks but the first, and without one."""
        return self.trainer.logger

    @property
    def n_parameters(self) -> int:
        """Number of trained parameters."""
        return sum(parameter.numel() for parameter in self.module.parameters())


def build(config: Config, directory: Path, ranks: Ranks, signals: StopSignals) -> TrainingRun:
    """Build a run from its config and the checkpoint that it resumes from; create its directory.

    Raises:
        OptionError: an option, the corpus or a checkpoint is not usable.
    """
    resumed_from, checkpoint = find_checkpoint(config, directory, ranks)
    L.seed_everything(config.seed, verbose=False)
    given = None
    if checkpoint is not None and config.data.level == "bpe":  # a resumed run needs neither file nor training
        given = Vocabulary.from_state_dict(checkpoint["txl_lightning"]["vocabulary"])
    data = ranks.in_turn(lambda: make_data(config, given))
    module = _build_module(config, data, ranks, resumed_from, checkpoint)
    n_parameters = sum(parameter.numel() for parameter in module.parameters())
    config = resolve_threads(config, n_parameters, checkpoint)
    if ranks.rank:  # initial weights are equal on all ranks; everything random after them is not
        torch.manual_seed(ranks.seed(config.seed))
    curves = TrainingCurves(config.trainer.log_every_n_steps, ranks)
    contexts = _build_context_curves(config, data, directory, curves)
    step, wandb_id, best_counts = 0, None, True
    if checkpoint is not None and resumed_from is not None:
        record = checkpoint["txl_lightning"]
        step, wandb_id = checkpoint["global_step"], online_run(config, record)
        best_counts = is_validated_alike(config, resumed_from, record, ranks)
        checkpoint = None  # frees a large dict

    logger: Logger | bool = False
    if ranks.rank == 0:
        if not continues_in(directory, resumed_from):
            clear_earlier_run(config, directory)
        directory.mkdir(parents=True, exist_ok=True)
        write_text(directory / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(plain(config))))
        if data.corpus.vocabulary.tokenizer:
            write_text(directory / "tokenizer.json", data.corpus.vocabulary.tokenizer)
        logger = _build_logger(config, directory, n_parameters, resumed_from, step, wandb_id)
    folder, checkpoints = directory / "checkpoints", None
    if config.checkpoint.enabled:
        options = (config.checkpoint.every_n_steps, config.trainer.val_every_n_steps)
        checkpoints = Checkpoints(folder, *options, ranks, resumed_from, step, best_counts)
    skipped = SkippedSteps(
        config.trainer.max_nonfinite_steps, ranks.rank, checkpoints, config.trainer.log_every_n_steps
    )
    record = {
        "config": plain(config),
        "vocabulary": data.corpus.vocabulary.state_dict(),
        "corpus": data.corpus.checksum,
        "wandb_id": logger.experiment.id if isinstance(logger, WandbLogger) else wandb_id,
    }
    callbacks: list[Callback | None] = [  # callbacks that measure a step precede those that save and end it
        curves,
        skipped,
        ValidationCurve(directory / "validation.jsonl", curves),
        contexts,
        RandomState(ranks, config.seed),
        RunRecord(record),
        ProgressBar(curves) if config.trainer.progress_bar else None,
        ProgressFile(directory, curves) if config.trainer.progress_file else None,
        StepWeights(folder, config.checkpoint.keep_every_n_steps, record, ranks, step) if checkpoints else None,
        checkpoints,
        CleanStop(signals, checkpoints),
    ]
    trainer = _build_trainer(config, directory, [callback for callback in callbacks if callback], logger)
    return TrainingRun(config, directory, ranks, data, module, trainer, curves, skipped, checkpoints, resumed_from)


def make_data(config: Config, vocabulary: Vocabulary | None = None) -> StreamsDataModule:
    """Return the data of a run, the corpus prepared.

    Args:
        config: config of the run.
        vocabulary: encode the corpus with this one instead of its own.

    Raises:
        UserError: the corpus cannot be loaded, or does not fit the options.
    """
    marked = config.memory.reset == "document"
    return StreamsDataModule(config.data, config.evaluation, extended_context(config), vocabulary, marked)


def _build_module(
    config: Config, data: StreamsDataModule, ranks: Ranks, resumed_from: Path | None, checkpoint: dict[str, Any] | None
) -> LanguageModelModule:
    vocabulary = data.corpus.vocabulary
    model = make_model(config, len(vocabulary))
    if isinstance(model, TransformerXL):
        model.use_attention(config.trainer.attention)
    lengths = evaluation_lengths(config)
    try:
        model.with_lengths(**lengths)
    except OptionError as error:
        raise error.within("evaluation") from error
    if checkpoint is not None:
        check_weights(str(resumed_from), "resume", checkpoint, model, vocabulary)
        check_same_run(config, str(resumed_from), checkpoint, data.corpus.checksum)
        left = config.trainer.max_steps - checkpoint["global_step"]
        allowed = f"must be greater than the {checkpoint['global_step']} steps of resume={resumed_from}"
        require(left > 0 or config.resume == "auto", "trainer.max_steps", config.trainer.max_steps, allowed)
        if left < 0 and ranks.rank == 0:
            done = f"{checkpoint['global_step']} steps are done, trainer.max_steps={config.trainer.max_steps}"
            print(f"resume=auto: {done}: nothing to train, the run is evaluated again", file=sys.stderr, flush=True)
    elif config.initial_weights is not None:
        initial = read_checkpoint(config.initial_weights, option="initial_weights")
        model.load_state_dict(check_weights(config.initial_weights, "initial_weights", initial, model, vocabulary))
        change = describe_change(Vocabulary.from_state_dict(initial["txl_lightning"]["vocabulary"]), vocabulary, model)
        if change and ranks.rank == 0:
            print(f"initial_weights={config.initial_weights}: {change}", file=sys.stderr, flush=True)
    if not config.checkpoint.memory and config.memory.mem_len and ranks.rank == 0:
        print(
            "checkpoint.memory=false: a run that resumes starts with an empty memory and will differ from an "
            "uninterrupted one",
            file=sys.stderr,
            flush=True,
        )
    return LanguageModelModule(
        model,
        config.optimizer,
        config.trainer.max_steps,
        level=vocabulary.level,
        evaluation_lengths=lengths,
        fused=config.trainer.precision != "16-mixed",
        compile=config.trainer.compile,
        loss=config.loss,
        column_chunks=config.trainer.column_chunks,
        ranks=ranks,
        save_memory=config.checkpoint.memory,
        byte_lengths=vocabulary.byte_lengths,
    )


def _build_context_curves(
    config: Config, data: StreamsDataModule, directory: Path, curves: TrainingCurves
) -> ContextCurves | None:
    if config.context_curve.every_n_steps is None:
        return None
    trained_len = config.data.segment_len + extended_context(config)
    tokens, path = data.corpus.splits["valid"], directory / "context_curve.jsonl"
    return ContextCurves(config.context_curve, tokens, trained_len, trained_clamp(config), path, curves)


def _build_logger(
    config: Config, directory: Path, n_parameters: int, resumed_from: Path | None, step: int, wandb_id: str | None
) -> Logger | bool:
    """Return the configured logger, which continues the curves up to `step` of an earlier session."""
    if config.logger.name == "csv":
        return csv_logger(directory, step)
    if config.logger.name == "none":
        return False
    continues = config.resume == "auto" or continues_in(directory, resumed_from)
    return wandb_run.start(config, directory, n_parameters, step if continues else None, wandb_id)


def _build_trainer(config: Config, directory: Path, callbacks: list[Callback], logger: Logger | bool) -> L.Trainer:
    options = config.trainer
    trainer = L.Trainer(
        accelerator=options.accelerator,
        devices=options.devices,
        num_nodes=options.num_nodes,
        strategy=DDPStrategy() if n_processes(options) > 1 else "auto",
        plugins=[DurableCheckpoints(), environment() or LightningEnvironment()],
        precision=options.precision,  # type: ignore[arg-type]
        max_steps=options.max_steps,
        val_check_interval=options.val_every_n_steps,
        check_val_every_n_epoch=None if options.val_every_n_steps else 1,
        limit_val_batches=options.val_max_segments,
        log_every_n_steps=options.log_every_n_steps,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        enable_model_summary=False,
        enable_progress_bar=options.progress_bar,
        enable_checkpointing=False,
        default_root_dir=directory,
        callbacks=callbacks,
        logger=logger,
    )
    disable_signal_handlers(trainer)  # CleanStop handles signals
    return trainer


def disable_signal_handlers(trainer: L.Trainer) -> None:
    """Keep Lightning from installing signal handlers (a private method), which talk to other ranks."""
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
