"""`txl train`: data, model, module and Trainer made from a config; fit, test, results."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from lightning import Trainer, seed_everything
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback, ProgressBar
from lightning.pytorch.loggers import Logger
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.strategies import DDPStrategy

from txl_lightning.config.lengths import in_windows, tokens_per_step, training_lengths
from txl_lightning.config.schemas import Config, plain
from txl_lightning.data.corpus import Corpus
from txl_lightning.data.vocabulary import KEPT_LEVELS, Vocabulary
from txl_lightning.errors import OptionError, UserError, cores, first_line, require
from txl_lightning.evaluation.hardware import (
    resolve_accelerator,
    resolve_precision,
    resolve_threads,
)
from txl_lightning.evaluation.models import (
    Model,
    always_carries_state,
    architecture,
    make_model,
    require_room,
)
from txl_lightning.evaluation.trained import Checkpoint, naming, read_checkpoint
from txl_lightning.evaluation.units import peak_memory, shown_units
from txl_lightning.files import write_json
from txl_lightning.ranks import (
    Ranks,
    connect,
    environment,
    further_ranks,
    leaving,
    n_processes,
)
from txl_lightning.reporting import upload_lines
from txl_lightning.reporting.code import code_version
from txl_lightning.training import Values
from txl_lightning.training.callbacks import ContextCurves, Progress, StopSignals, ValidationCurve
from txl_lightning.training.checkpoints import (
    BEST,
    DurableCheckpointIO,
    RunCheckpoint,
    UnwrittenCheckpointError,
    who_stopped,
)
from txl_lightning.training.checks import check_config, check_same_on_all_ranks
from txl_lightning.training.loaders import GroupedStreamsDataModule
from txl_lightning.training.loggers import (
    arm,
    lightning_loggers,
    start_wandb,
    wandb_runs,
)
from txl_lightning.training.module import LanguageModelModule, NotFiniteError, lengths_of
from txl_lightning.training.objects import make, new_trainer, trainer_arguments
from txl_lightning.training.start import (
    Start,
    check_same_run,
    load_weights,
    prepare_directory,
    refuse_to_replace,
)


def run(options: Config, directory: Path) -> list[str]:
    """Train one model and return its metrics on one line, how to upload an offline W&B run, and what to do next.

    Raises:
        UserError: as `train` does.
    """
    with leaving():
        metrics = train(options, directory)
    return closing_lines(metrics, options, directory)


def train(config: Config, directory: Path | str) -> Values:
    """Train one model and evaluate its best weights on the validation and the test split.

    Writes `config.yaml`, `validation.jsonl`, `metrics.json`, `checkpoints/last.ckpt` and `best.ckpt`, and the
    logger's files into `directory`. With several `trainer.devices` the processes are
    started here, unless torchrun or SLURM started them.

    Returns:
        The contents of `metrics.json`.

    Raises:
        UserError: an option, the corpus or the checkpoint to resume from is not usable, a process failed, a checkpoint
            could not be written, or the loss is not finite.
        Stopped: a signal ended the run; the message names the checkpoint, if one was written.
    """
    directory = Path(directory)
    config = resolve_accelerator(config)
    check_config(config)
    trainer_arguments(config.trainer)  # before the corpus, whose preparation may take long
    refuse_to_replace(config, directory)
    n_copies = 1
    if config.trainer.accelerator == "cpu":
        n_copies = 4 * config.trainer.devices  # weights, gradients and two moments
    require_room(architecture(config, 2**31), 4 * n_copies)
    threads = torch.get_num_threads()
    try:
        if n_processes(config.trainer) == 1 or environment() is not None:
            return train_rank(config, directory)
        n_nodes = config.trainer.num_nodes
        require(n_nodes == 1, "trainer.num_nodes", n_nodes, "needs torchrun or SLURM")
        arguments = (plain(config), str(directory))
        with further_ranks(config.trainer.devices, "txl_lightning.training.rank", arguments):
            return train_rank(config, directory)
    finally:
        torch.set_num_threads(threads)  # the next run in this process chooses among as many


def train_rank(config: Config, directory: Path) -> Values:
    """Train and evaluate as one rank; rank 0 writes `metrics.json`."""
    if config.trainer.num_threads is not None:
        torch.set_num_threads(config.trainer.num_threads)
    ranks = connect(config.trainer)
    with StopSignals(ranks) as signals, quiet_libraries():
        check_same_on_all_ranks(config, ranks)
        training = build(config, ranks.first(directory), ranks, signals)
        exit_code = 1
        try:
            if config.train:
                fit(training)
            metrics = test(training)
            if ranks.rank == 0:
                write_results(training, metrics)
            exit_code = 0
        finally:
            if signals.agreed:
                exit_code = 128 + signals.agreed
            for wandb_run in wandb_runs(training.trainer):
                wandb_run.finish(exit_code=exit_code)  # a child process leaves without W&B's end
    return metrics


@dataclass
class TrainingRun:
    """Everything that one rank needs to train, evaluate and write its results."""

    config: Config
    directory: Path
    data: GroupedStreamsDataModule
    module: LanguageModelModule
    trainer: Trainer
    curve: ValidationCurve
    start: Start


def build(config: Config, directory: Path, ranks: Ranks, signals: StopSignals) -> TrainingRun:
    """Build a run from its config and its start; create its directory.

    Precision and number of threads are resolved here: they depend on the checkpoint.

    Raises:
        OptionError: an option, the corpus or a checkpoint is not usable.
    """
    start = Start.of(config, directory, ranks)
    resumed_config = start.resumed.config if start.resumed else None
    config = ranks.first(resolve_precision(config, resumed_config))
    own = own_callbacks(config, directory)
    loggers: list[Logger] = [DummyLogger()]  # on ranks that write nothing
    if ranks.rank == 0:
        loggers = lightning_loggers(config, directory)
    seed_everything(config.seed, verbose=False)

    vocabulary = kept_vocabulary(config, start, ranks)
    data = ranks.in_turn(lambda: make_data(config, vocabulary))
    corpus = data.corpus
    model = build_model(config, corpus, ranks, start)
    config = resolve_threads(config, model, resumed_config)
    if ranks.rank:  # initial weights are equal on all ranks; everything random after them is not
        torch.manual_seed(ranks.seed(config.seed))

    module = LanguageModelModule(model, config, corpus.vocabulary, ranks)
    module.record["vocabulary_given"] = vocabulary is not None
    module.record["corpus"] = corpus.checksum
    curve = ValidationCurve(directory)
    callbacks = [
        curve,
        *own,
        *make_callbacks(config, directory, corpus, signals),
    ]
    if ranks.rank == 0:
        prepare_directory(config, directory, corpus.vocabulary.tokenizer)
    trainer = make_trainer(config, directory, callbacks, start)
    n_parameters = count_parameters(module)
    if ranks.rank == 0 and "wandb" in config.logger.each:
        wandb = start_wandb(config, directory, n_parameters, start.resumed)
        module.record["wandb_id"] = wandb.experiment.id
        loggers.append(wandb)
    trainer.loggers = loggers
    if start.ended_by:
        module.record["ended_by"] = start.ended_by
        ended = f"resume=auto: {start.ended_by} ended this run"
        ranks.report(f"{ended}, which is evaluated again; resume=CHECKPOINT trains on")
    ranks.report(*opening_lines(config, corpus, n_parameters))
    return TrainingRun(config, directory, data, module, trainer, curve, start)


# Data


def kept_vocabulary(config: Config, start: Start, ranks: Ranks) -> Vocabulary | None:
    """Return the vocabulary in a run's checkpoint, to encode the text; None where the text makes one."""
    resumed = start.resumed
    if resumed is not None:  # without the tokenizer's file and training
        is_kept = config.data.level in KEPT_LEVELS or resumed.record.get("vocabulary_given")
        return resumed.vocabulary if is_kept else None
    if start.weights is None:
        return None
    vocabulary = start.weights.vocabulary
    level = config.data.level
    allowed = f"was trained at level {vocabulary.level} and has no token at level {level}"
    start.weights.require(vocabulary.level == level, allowed)
    kept = f"its vocabulary of {len(vocabulary):,} tokens is kept"
    ranks.report(
        f"initial_weights={config.initial_weights}: {kept}, options of data for another one have no effect"
    )
    return replace(vocabulary, lenient=vocabulary.unknown >= 0)


def make_data(config: Config, vocabulary: Vocabulary | None = None) -> GroupedStreamsDataModule:
    """Return a run's data, with the corpus prepared; a training batch has all segments in a step.

    Args:
        config: the run's config.
        vocabulary: encode the corpus with this one instead of the one it makes.

    Raises:
        UserError: the corpus cannot be loaded, or does not fit the options.
    """
    n_segments = config.memory.gradient_segments + 1
    data = GroupedStreamsDataModule(
        replace(config.data, segment_len=config.data.segment_len * n_segments),
        in_windows(config).evaluation,
        training_lengths(config).ext_len,
        vocabulary,
        marked=config.memory.reset == "document",
    )
    data.n_groups = config.trainer.stream_groups
    return data


# Model


def build_model(config: Config, corpus: Corpus, ranks: Ranks, start: Start) -> Model:
    """Return the model with its starting weights."""
    model = make_model(config, len(corpus.vocabulary))
    try:
        model.with_lengths(**lengths_of(config).keywords())
    except OptionError as error:
        raise error.within("evaluation") from error
    checkpoint = start.resumed or start.weights
    if checkpoint is not None:
        load_weights(model, checkpoint, corpus.vocabulary)
    if start.resumed is not None:
        check_same_run(config, start.resumed, corpus.checksum)
        if config.train:
            _check_steps(config, start.resumed, ranks)
    if config.trainer.precision == "64-true":
        # Lightning converts the model after it has restored the weights, which float32 would round.
        return model.double()
    return model


def _check_steps(config: Config, resumed: Checkpoint, ranks: Ranks) -> None:
    """Refuse a run without steps left, unless `resume=auto` evaluates it again."""
    max_steps = config.trainer.max_steps
    if resumed.step >= max_steps:
        allowed = f"must be greater than the {resumed.step} steps of resume={resumed.path}"
        require(config.resume == "auto", "trainer.max_steps", max_steps, allowed)
        done = f"{resumed.step} of {max_steps} steps are done"
        ranks.report(f"resume=auto: {done}, the run is evaluated again")


# Trainer


def own_callbacks(config: Config, directory: Path) -> list[Callback]:
    """Return the callbacks that a user names by their class; Lightning's checkpoints go into the run's folder.

    Raises:
        OptionError: one cannot be made.
    """
    callbacks = []
    for name, given in config.callbacks.items():
        if given is not None:
            folder = str(directory / "checkpoints" / name)
            callbacks.append(make(given, f"callbacks.{name}", Callback, dirpath=folder))
    return callbacks


def make_callbacks(
    config: Config, directory: Path, corpus: Corpus, signals: StopSignals
) -> list[Callback]:
    """Return the callbacks that the options choose: context curves, progress, checkpoints; signals stand last."""
    callbacks: list[Callback] = []
    if config.context_curve.every_n_steps is not None:
        callbacks.append(ContextCurves(config, corpus.splits["valid"], directory))
    if config.trainer.progress_bar:
        callbacks.append(Progress())
    if config.checkpoint.enabled:
        signals.checkpoint = RunCheckpoint(directory / "checkpoints", config.checkpoint)
        callbacks.append(signals.checkpoint)
    callbacks.append(signals)
    return callbacks


def make_trainer(
    config: Config, directory: Path, callbacks: list[Callback], start: Start
) -> Trainer:
    """Return the Trainer; a run that a callback had ended trains no further steps."""
    options = config.trainer
    n_visible = torch.cuda.device_count() if options.accelerator == "gpu" else options.devices
    max_steps = options.max_steps
    if start.resumed and start.ended_by:
        max_steps = start.resumed.step
    interval = None
    if options.val_every_n_steps is not None and "val_check_interval" not in options.lightning:
        interval = options.val_every_n_steps * options.stream_groups
    arguments: Values = {
        "accelerator": options.accelerator,
        "devices": min(options.devices, n_visible),
        "num_nodes": options.num_nodes,
        "strategy": _strategy(config, n_visible),
        "plugins": [DurableCheckpointIO(), environment() or LightningEnvironment()],
        "precision": options.precision,
        "max_steps": max_steps,
        "accumulate_grad_batches": options.stream_groups,
        "val_check_interval": interval,
        "check_val_every_n_epoch": None if interval else 1,
        "limit_val_batches": in_windows(config).trainer.val_max_segments,
        "log_every_n_steps": options.log_every_n_steps,
        "num_sanity_val_steps": 0,
        "use_distributed_sampler": False,
        "enable_model_summary": False,
        "enable_progress_bar": any(isinstance(callback, ProgressBar) for callback in callbacks),
        "default_root_dir": directory,
        "callbacks": callbacks,
        "logger": False,
    }
    trainer = new_trainer(arguments, options)
    disable_signal_handlers(trainer)  # StopSignals handles them
    return trainer


def _strategy(config: Config, n_visible: int) -> Any:
    options = config.trainer
    if n_processes(options) == 1:
        return "auto"
    if options.accelerator != "gpu":
        return DDPStrategy()
    devices = [torch.device("cuda", rank % n_visible) for rank in range(options.devices)]
    return DDPStrategy(parallel_devices=devices)


def disable_signal_handlers(trainer: Trainer) -> None:
    """Keep Lightning from installing signal handlers, and from asking the other ranks for signals in every step.

    Both are private methods. The second, new in 2.6, makes the CPU wait for the GPU; it catches the error of a dead
    rank, after which the other ranks wait for its gradients.
    """
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]


# Fit


def fit(training: TrainingRun) -> None:
    """Train up to `trainer.max_steps`, with the last state saved.

    Raises:
        UserError: the loss is not finite, or a checkpoint cannot be written.
    """
    resumed = training.start.resumed
    try:
        training.trainer.fit(
            training.module, datamodule=training.data, ckpt_path=resumed.path if resumed else None
        )
    except (NotFiniteError, UnwrittenCheckpointError) as error:
        advice = error.advice.format(directory=training.directory)
        raise UserError(f"{error}; {advice}") from error
    except UserError:
        raise
    except MisconfigurationException as error:
        raise UserError(f"trainer: Lightning refuses it: {first_line(error)}") from error
    except Exception:
        if resumed is None or training.trainer.global_step > resumed.step:
            raise
        with naming(resumed.option, resumed.path):  # before the first step, blame the checkpoint
            raise


# Test


def test(training: TrainingRun) -> Values:
    """Score the best weights (the last without checkpoints) on the validation and the test split.

    Returns:
        The contents of `metrics.json`.

    Raises:
        UserError: a number is not finite.
    """
    module = training.module
    trainer = training.trainer
    start = training.start
    given = start.resumed or start.weights
    n_steps = trainer.global_step
    if given is not None and not training.config.train:
        n_steps = given.step
    metrics: Values = {
        "steps": n_steps,
        "tokens": module.tokens,
        "seconds": round(training.curve.seconds, 2),
        "peak_memory_bytes": module.ranks.largest(peak_memory(trainer.strategy.root_device)),
        "weights": "last",
        "weights_step": n_steps,
    }
    ended_by = start.ended_by or who_stopped(trainer)
    if ended_by:
        metrics["ended_by"] = ended_by
    best = training.directory / "checkpoints" / BEST
    if training.config.train and training.config.checkpoint.enabled and best.exists():
        checkpoint = read_checkpoint(best)
        module.load_state_dict(checkpoint.contents["state_dict"])
        metrics["weights"] = "best"
        metrics["weights_step"] = checkpoint.step
    score_splits(training)
    metrics.update(module.metrics)
    metrics["evaluation"] = evaluation_settings(training)
    metrics["corpus"] = training.data.corpus.facts()
    metrics["parameters"] = count_parameters(module)
    metrics["processes"] = module.ranks.world_size
    metrics.update(code_version())
    for name, value in metrics.items():  # metrics.json cannot hold infinite numbers
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(
                f"{name}={value} after {n_steps} steps: training diverged; lower optimizer.lr"
            )
    return metrics


def score_splits(training: TrainingRun) -> None:
    """Score the validation and the test split; `module.metrics` has the result."""
    trainer = training.trainer
    if not trainer.fast_dev_run:  # type: ignore[attr-defined] # it limits every split itself
        n_segments = training.data.evaluation.max_segments or 1.0
        trainer.limit_val_batches = n_segments
        trainer.limit_test_batches = n_segments
    loggers = trainer.loggers
    trainer.loggers = []  # the validation curve uses fewer segments
    trainer.validate(training.module, datamodule=training.data, verbose=False)
    trainer.loggers = loggers
    if training.config.test:
        trainer.test(training.module, datamodule=training.data, verbose=False)


def evaluation_settings(training: TrainingRun) -> Values:
    """Return protocol and lengths for the final evaluation."""
    options = training.data.evaluation
    lengths = training.module.evaluation_lengths
    return {
        "protocol": lengths.protocol_word(always_carries_state(training.config)),
        **lengths.keywords(),
        "segment_len": options.segment_len,
        "streams_start": lengths.streams_start(training.config.memory.start),
        "batch_size": options.batch_size,
        "max_segments": options.max_segments,
    }


def count_parameters(module: LanguageModelModule) -> int:
    """Return the number of parameters."""
    return sum(parameter.numel() for parameter in module.parameters())


# Results


def write_results(training: TrainingRun, metrics: Values) -> None:
    """Write `metrics.json`, the best weights' values on whole splits, and put the same into W&B's summary."""
    write_json(training.directory / "metrics.json", metrics, allow_nan=False)
    for wandb_run in wandb_runs(training.trainer):
        for name, value in metrics.items():
            wandb_run.summary[f"final/{name}"] = value


def opening_lines(config: Config, corpus: Corpus, n_parameters: int) -> list[str]:
    """Return the lines that a run begins with: model, data, device and steps."""
    trainer = config.trainer
    splits = []
    for split, tokens in corpus.splits.items():
        unknown = corpus.unknown_share(split)
        splits.append(f"{split} {len(tokens):,}{unknown}")
    vocabulary = f"level {corpus.vocabulary.level}, vocabulary {len(corpus.vocabulary):,}"
    device = f"{n_processes(trainer)} × {trainer.accelerator}, precision {trainer.precision}"
    streams = f"{config.data.batch_size:,} streams of {config.data.segment_len:,} tokens"
    words = ", ".join(arm(config))
    return [
        f"model: {config.model.name}, {n_parameters:,} parameters; {words}",
        f"data: {corpus.name}, {vocabulary}; tokens: {', '.join(splits)}",
        f"device: {device}, {torch.get_num_threads()} of {cores()} CPU threads",
        f"steps: {trainer.max_steps:,}, each of {tokens_per_step(config):,} tokens ({streams})",
    ]


def closing_lines(metrics: Values, options: Config, directory: Path) -> list[str]:
    """Return the lines that a run ends with: losses, the test split first, files, and the next two commands."""
    losses = []
    for split in ("test", "val"):
        if f"{split}/nll" in metrics:
            for unit in ("nll", *shown_units(metrics, f"{split}/")):
                name = f"{split}/{unit}"
                losses.append(f"{name} {metrics[name]:.4f}")
    line = f"{', '.join(losses)} after {metrics['steps']} steps"
    if "ended_by" in metrics:
        line += f", ended by {metrics['ended_by']}"
    if metrics["weights_step"] != metrics["steps"]:
        line += f", with the weights of step {metrics['weights_step']}, the best on validation"
    lines = [line, *upload_lines(directory)]
    lines.append(
        f"lower is better; metrics.json, config.yaml, validation.jsonl and checkpoints are in {directory}"
    )
    if options.checkpoint.enabled and options.train:
        best = directory / "checkpoints" / BEST
        lines.append(f"next: txl evaluate checkpoint={best} or txl generate checkpoint={best}")
    return lines


SILENCED = (  # warnings about what a run means to do
    r".*LeafSpec.*",
    r"GPU available but not used.*",  # trainer.accelerator=cpu was chosen
    r"Be aware that when using `ckpt_path`.*",  # other callbacks now
    r"The number of training batches .* is smaller than the logging.*",
    r"Checkpoint directory .* exists and is not empty.*",
)


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Silence messages that do not apply here: devices found, advertisements, loaders without shuffling or workers."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    # ModelSummary, EarlyStopping's verbose
    logging.getLogger("lightning.pytorch.callbacks").setLevel(logging.INFO)
    libraries = r"lightning\.|torch\.jit"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=libraries, category=DeprecationWarning)
        for message in SILENCED:
            warnings.filterwarnings("ignore", message=message)
        yield
