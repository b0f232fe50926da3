"""One run from its configuration: train, evaluate, write everything into the run directory."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger, WandbLogger
from lightning.pytorch.strategies import DDPStrategy
from omegaconf import OmegaConf

from txl_lightning.config.lengths import evaluation_lengths, extended_context
from txl_lightning.config.schemas import Config, from_plain, plain
from txl_lightning.data.datamodule import StreamsDataModule
from txl_lightning.distributed.launch import run_on_all
from txl_lightning.distributed.ranks import Ranks, connect, environment, n_processes
from txl_lightning.errors import OptionError, Stopped, require
from txl_lightning.runs.models import make_model
from txl_lightning.runs.storage import DurableCheckpoints
from txl_lightning.runs.trained import read_checkpoint
from txl_lightning.training.callbacks.checkpointing import LAST, Checkpoints, last_good
from txl_lightning.training.callbacks.context_curves import ContextCurves
from txl_lightning.training.callbacks.curves import ProgressBar, RunRecord, TrainingCurves, ValidationCurve
from txl_lightning.training.callbacks.progress_file import ProgressFile
from txl_lightning.training.callbacks.random_state import RandomState
from txl_lightning.training.callbacks.stopping import CleanStop, SkippedSteps
from txl_lightning.training.checks import check_options, check_same_everywhere, check_same_run, check_weights
from txl_lightning.training.loggers import wandb_curves
from txl_lightning.training.loggers.choice import make_logger
from txl_lightning.training.module import LanguageModelModule


def train(config: Config, directory: Path) -> dict[str, Any]:
    """Train one model and evaluate its best weights on the validation and the test split.

    Writes `config.yaml`, `validation.jsonl`, `metrics.json`, `checkpoints/last.ckpt`, `previous.ckpt` and
    `best.ckpt`, and the logger's files into `directory`. With several `trainer.devices` the processes are
    started here, unless torchrun or SLURM started them.

    Returns:
        What `metrics.json` holds.

    Raises:
        UserError: an option, the corpus or the checkpoint to resume from is not usable, or a process died.
        Stopped: SIGTERM or SIGINT came; the state is saved.
    """
    check_options(config)
    if config.trainer.num_threads is not None:
        torch.set_num_threads(config.trainer.num_threads)
    if n_processes(config.trainer) > 1 and environment() is None:
        require(config.trainer.num_nodes == 1, "trainer.num_nodes", config.trainer.num_nodes, "needs torchrun or SLURM")
        StreamsDataModule(config.data, config.evaluation, extended_context(config))  # prepared once, refused here
        result = run_on_all(_train_rank, plain(config), str(directory), processes=config.trainer.devices)
        if isinstance(result, Stopped):
            raise result
        return result
    return train_rank(config, directory, connect(config.trainer))


def _train_rank(config: dict[str, Any], directory: str) -> dict[str, Any] | Stopped:
    """What a started process does: it reads no command line, so that all have the same configuration."""
    try:
        return train(from_plain(config), Path(directory))
    except Stopped as stopped:  # all ranks did, after the same step: no rank failed
        return stopped


def train_rank(config: Config, directory: Path, ranks: Ranks) -> dict[str, Any]:
    """This process's part of `train`."""
    with CleanStop(ranks) as stop, quiet_libraries():
        check_same_everywhere(config, ranks)
        directory = ranks.first(directory)
        resumed_from, resume = find_checkpoint(config, directory, ranks)
        L.seed_everything(config.seed, verbose=False)
        data = StreamsDataModule(config.data, config.evaluation, extended_context(config))
        module = make_module(config, data, ranks, resumed_from, resume)
        if ranks.rank:  # the weights are drawn alike, everything else is not
            torch.manual_seed(ranks.seed(config.seed))
        curves = TrainingCurves(config.trainer.log_every_n_steps, ranks)
        contexts = make_context_curves(config, data, directory, curves)
        step, run_id = (resume["global_step"], resume["txl_lightning"].get("wandb_id")) if resume else (0, None)
        resume = None  # large

        logger: Logger | bool = False
        if ranks.rank == 0:
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(plain(config))))
            logger = make_logger(config, directory, count_parameters(module), step, run_id)
        record: dict[str, Any] = {"config": plain(config), "vocabulary": data.corpus.vocabulary.state_dict()}
        record |= {"corpus": data.corpus.checksum}
        record |= {"wandb_id": logger.experiment.id if isinstance(logger, WandbLogger) else run_id}
        options, every = config.trainer, config.trainer.val_every_n_steps
        if config.checkpoint.enabled:
            lengths = (config.checkpoint.every_n_steps, every and min(every, options.max_steps))
            stop.checkpoints = Checkpoints(directory / "checkpoints", *lengths, ranks, resumed_from, step)
        skipped = SkippedSteps(options.max_nonfinite_steps, ranks.rank, stop.checkpoints)
        callbacks: list[Callback | None] = [  # those that measure a step come before those that save and end it
            curves,
            skipped,
            ValidationCurve(directory / "validation.jsonl", curves),
            contexts,
            RandomState(ranks, config.seed),
            RunRecord(record),
            ProgressBar(curves) if options.progress_bar else None,
            ProgressFile(directory, curves) if options.progress_file else None,
            stop.checkpoints,
            stop,
        ]
        trainer = make_trainer(config, directory, [callback for callback in callbacks if callback], logger)
        trainer.fit(module, datamodule=data, ckpt_path=resumed_from)
        if stop.checkpoints is not None and stop.checkpoints.saved_step != trainer.global_step:
            stop.checkpoints.save(trainer)
        metrics: dict[str, Any] = {"steps": trainer.global_step, "tokens": curves.tokens}
        metrics |= {"seconds": round(curves.seconds, 2), "skipped_steps": skipped.total}
        best = stop.checkpoints.best_path if stop.checkpoints else None
        metrics |= evaluate_best(trainer, module, data, best)
        metrics |= {"parameters": count_parameters(module), "processes": ranks.world_size}
        if ranks.rank == 0:
            (directory / "metrics.json").write_text(json.dumps(metrics, indent=2, allow_nan=False) + "\n")
            if isinstance(logger, WandbLogger):
                wandb_curves.finish(logger, config, metrics, best)
    return metrics


def make_context_curves(
    config: Config, data: StreamsDataModule, directory: Path, curves: TrainingCurves
) -> ContextCurves | None:
    """What measures the context curve, if it is asked for."""
    if config.context_curve.every_n_steps is None:
        return None
    trained_len = config.data.segment_len + extended_context(config)
    path = directory / "context_curve.jsonl"
    return ContextCurves(config.context_curve, data.corpus.splits["valid"], trained_len, path, curves)


def find_checkpoint(config: Config, directory: Path, ranks: Ranks) -> tuple[Path | None, dict[str, Any] | None]:
    """The checkpoint that `resume` names and what it holds; `auto` is the last good one of the run directory.

    The first rank chooses, and says what it chose and what it had to pass over.
    """
    if config.resume != "auto":
        path = None if config.resume is None else Path(config.resume)
        if path is None and ranks.rank == 0 and (directory / "checkpoints" / LAST).exists():
            print(f"{directory} holds an earlier run, whose checkpoints this one replaces", file=sys.stderr, flush=True)
    else:
        found, complaints = last_good(directory / "checkpoints") if ranks.rank == 0 else (None, [])
        path, complaints = ranks.first((found, complaints))
        if ranks.rank == 0:
            news = "starting from the beginning" if path is None else f"going on from {path}"
            none = f"no checkpoint in {directory / 'checkpoints'}, " if path is None and not complaints else ""
            for line in (*complaints, f"resume=auto: {none}{news}"):
                print(line, file=sys.stderr, flush=True)
    contents = None if path is None else read_checkpoint(path, option="resume")
    if contents is not None and ranks.rank == 0:
        warn_without_memory(config, contents, path)
    return path, contents


def warn_without_memory(config: Config, checkpoint: dict[str, Any], path: Path | None) -> None:
    """Say what it means to go on without the memory, where the run has one."""
    state = checkpoint.get("training_memory", {})
    if config.memory.mem_len and state.get("next_number") and state.get("memory") is None:
        print(
            f"resume={path} holds no training memory (checkpoint.memory=false): it fills again over the next "
            f"{config.memory.mem_len} tokens of every stream, and the run will differ from an uninterrupted one",
            file=sys.stderr,
            flush=True,
        )


def make_module(
    config: Config, data: StreamsDataModule, ranks: Ranks, resumed_from: Path | None, resume: dict[str, Any] | None
) -> LanguageModelModule:
    """A new model in its LightningModule, refused if the checkpoint to go on from is not of this run.

    Raises:
        OptionError: naming the option.
    """
    vocabulary = data.corpus.vocabulary
    model = make_model(config, len(vocabulary))
    lengths = evaluation_lengths(config)
    try:
        model.with_lengths(**lengths)
    except OptionError as error:
        raise error.within("evaluation") from error
    if resume is not None:
        check_weights(str(resumed_from), "resume", resume, model, vocabulary)
        check_same_run(config, str(resumed_from), resume, data.corpus.checksum)
        left = config.trainer.max_steps - resume["global_step"]
        allowed = f"must be greater than the {resume['global_step']} steps of resume={resumed_from}"
        require(left > 0 or config.resume == "auto", "trainer.max_steps", config.trainer.max_steps, allowed)
    elif config.initial_weights is not None:
        initial = read_checkpoint(config.initial_weights, option="initial_weights")
        model.load_state_dict(check_weights(config.initial_weights, "initial_weights", initial, model, vocabulary))
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
    )


def count_parameters(module: torch.nn.Module) -> int:
    """How many numbers are trained."""
    return sum(parameter.numel() for parameter in module.parameters())


def make_trainer(config: Config, directory: Path, callbacks: list[Callback], logger: Logger | bool) -> L.Trainer:
    """Lightning's trainer: ordered streams (no sampler of its own), validation in mid-epoch."""
    options = config.trainer
    trainer = L.Trainer(
        accelerator=options.accelerator,
        devices=options.devices,
        num_nodes=options.num_nodes,
        strategy=DDPStrategy() if n_processes(options) > 1 else "auto",
        plugins=[DurableCheckpoints(), environment() or LightningEnvironment()],
        precision=options.precision,  # type: ignore[arg-type]
        max_steps=options.max_steps,
        val_check_interval=options.val_every_n_steps and min(options.val_every_n_steps, options.max_steps),
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
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]  # CleanStop's are there
    return trainer


def evaluate_best(
    trainer: L.Trainer, module: LanguageModelModule, data: StreamsDataModule, best: Path | None
) -> dict[str, Any]:
    """The best weights (the last, if there are none) on the validation and the test split, and how they were scored."""
    if best is not None:
        module.load_state_dict(read_checkpoint(best)["state_dict"])
    options, corpus = data.evaluation, data.corpus
    trainer.limit_val_batches = trainer.limit_test_batches = options.max_segments or 1.0
    trainer.validate(module, datamodule=data, verbose=False)
    trainer.test(module, datamodule=data, verbose=False)
    evaluation = {**module.evaluation_lengths, "segment_len": options.segment_len, "streams_start": "without context"}
    evaluation |= {"batch_size": options.batch_size, "max_segments": options.max_segments}
    return {
        "weights": "last" if best is None else "best",
        **module.figures,
        "evaluation": evaluation,
        "corpus": {"name": corpus.name, "level": corpus.vocabulary.level, "sha256": corpus.checksum},
    }


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Without the notes that do not apply here: devices found, advertisements, unshuffled loaders without workers."""
    for name in ("lightning.pytorch", "matplotlib"):
        logging.getLogger(name).setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"lightning\.|torch\.jit", category=DeprecationWarning)
        warnings.filterwarnings("ignore", message=r".*exists and is not empty.*")
        warnings.filterwarnings("ignore", message=r".*LeafSpec.*")
        warnings.filterwarnings("ignore", message=r"The dirpath has changed.*")
        yield
