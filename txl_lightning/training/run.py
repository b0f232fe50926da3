"""Training run: train, evaluate the best weights, write the results into the run directory."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.loggers import WandbLogger

from txl_lightning.config.lengths import protocol_word, streams_start
from txl_lightning.config.schemas import Config, from_plain, plain
from txl_lightning.distributed.launch import run_on_all
from txl_lightning.distributed.ranks import Ranks, connect, environment, n_processes
from txl_lightning.errors import Stopped, UserError, require
from txl_lightning.files import write_json
from txl_lightning.runs.metrics import peak_memory
from txl_lightning.runs.trained import read_checkpoint
from txl_lightning.training import wandb_run
from txl_lightning.training.build import TrainingRun, build, make_data
from txl_lightning.training.checks import check_config, check_same_on_all_ranks
from txl_lightning.training.precision import resolve_machine
from txl_lightning.training.resume import last_good
from txl_lightning.training.stopping import StopSignals


def train(config: Config, directory: Path) -> dict[str, Any]:
    """Train one model and evaluate its best weights on the validation and the test split.

    Writes `config.yaml`, `validation.jsonl`, `metrics.json`, `checkpoints/last.ckpt`, `previous.ckpt` and
    `best.ckpt`, and the logger's files into `directory`. With several `trainer.devices` the processes are
    started here, unless torchrun or SLURM started them.

    Returns:
        The contents of `metrics.json`.

    Raises:
        UserError: an option, the corpus or the checkpoint to resume from is not usable, a process failed, or the
            loss at the end is not finite.
        Stopped: SIGTERM or SIGINT was received; the state is saved.
    """
    config = resolve_machine(config)
    check_config(config)
    threads = torch.get_num_threads()
    try:
        if config.trainer.num_threads is not None:
            torch.set_num_threads(config.trainer.num_threads)
        if n_processes(config.trainer) > 1 and environment() is None:
            return _train_in_processes(config, directory)
        return train_rank(config, directory, connect(config.trainer))
    finally:
        torch.set_num_threads(threads)  # the next run in this process chooses among as many


def train_rank(config: Config, directory: Path, ranks: Ranks) -> dict[str, Any]:
    """Train and evaluate as one of the ranks; rank 0 writes `metrics.json`."""
    with StopSignals(ranks) as signals, quiet_libraries():
        check_same_on_all_ranks(config, ranks)
        run = build(config, ranks.first(directory), ranks, signals)
        fit(run)
        metrics = {
            "steps": run.trainer.global_step,
            "tokens": run.curves.tokens,
            "seconds": round(run.curves.seconds, 2),
            "peak_memory_bytes": ranks.largest(peak_memory(run.trainer.strategy.root_device)),
            "skipped_steps": run.skipped.total,
            **test(run),
            "parameters": run.n_parameters,
            "processes": ranks.world_size,
        }
        check_finite(metrics)
        if ranks.rank == 0:
            write_metrics(run, metrics)
    return metrics


def fit(run: TrainingRun) -> None:
    """Train up to `trainer.max_steps`, and save the last state."""
    run.trainer.fit(run.module, datamodule=run.data, ckpt_path=run.resumed_from)
    if run.checkpoints is not None and run.checkpoints.saved_step != run.trainer.global_step:
        run.checkpoints.save(run.trainer)


def test(run: TrainingRun) -> dict[str, Any]:
    """Score the best weights (the last without checkpoints) on the validation and the test split."""
    best, options, corpus = _best(run), run.data.evaluation, run.data.corpus
    if best is not None:
        run.module.load_state_dict(read_checkpoint(best)["state_dict"])
    run.trainer.limit_val_batches = run.trainer.limit_test_batches = options.max_segments or 1.0
    run.trainer.validate(run.module, datamodule=run.data, verbose=False)
    run.trainer.test(run.module, datamodule=run.data, verbose=False)
    return {
        "weights": "last" if best is None else "best",
        "weights_step": run.checkpoints.best_step if run.checkpoints and best else run.trainer.global_step,
        **run.module.metrics,
        "evaluation": {
            "protocol": protocol_word(run.module.evaluation_lengths),
            **run.module.evaluation_lengths,
            "segment_len": options.segment_len,
            "streams_start": streams_start(run.module.evaluation_lengths, run.config.memory.start),
            "batch_size": options.batch_size,
            "max_segments": options.max_segments,
        },
        "corpus": {"name": corpus.name, "level": corpus.vocabulary.level, "sha256": corpus.checksum},
    }


def check_finite(metrics: dict[str, Any]) -> None:
    """Raise `UserError` for a metric that is infinite or nan, which `metrics.json` cannot hold."""
    for name, value in metrics.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{name}={value} after {metrics['steps']} steps: training diverged; lower optimizer.lr")


def write_metrics(run: TrainingRun, metrics: dict[str, Any]) -> None:
    """Write `metrics.json`, and end the W&B run with the metrics as its summary."""
    write_json(run.directory / "metrics.json", metrics, allow_nan=False)
    if isinstance(run.logger, WandbLogger):
        wandb_run.finish(run.logger, run.config, metrics, _best(run))


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Silence messages that do not apply here: devices found, advertisements, loaders without shuffling or workers."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"lightning\.|torch\.jit", category=DeprecationWarning)
        warnings.filterwarnings("ignore", message=r".*exists and is not empty.*")
        warnings.filterwarnings("ignore", message=r".*LeafSpec.*")
        warnings.filterwarnings("ignore", message=r"The dirpath has changed.*")
        warnings.filterwarnings("ignore", message=r"GPU available but not used.*")  # trainer.accelerator=cpu was chosen
        yield


def _train_in_processes(config: Config, directory: Path) -> dict[str, Any]:
    options = config.trainer
    require(options.num_nodes == 1, "trainer.num_nodes", options.num_nodes, "needs torchrun or SLURM")
    # Prepare the corpus once; bad options end the run before the processes start. A resumed run needs no tokenizer:
    # each process takes that of the checkpoint.
    resumed = last_good(directory / "checkpoints")[0] if config.resume == "auto" else config.resume
    if resumed is None or config.data.level != "bpe":
        make_data(config)
    result = run_on_all(_train_started_rank, plain(config), str(directory), processes=options.devices)
    if isinstance(result, Stopped):
        raise result
    return result


def _train_started_rank(config: dict[str, Any], directory: str) -> dict[str, Any] | Stopped:
    try:
        return train(from_plain(config), Path(directory))
    except Stopped as stopped:  # returned, not raised: all ranks stopped after the same step and none failed
        return stopped


def _best(run: TrainingRun) -> Path | None:
    return run.checkpoints.best_path if run.checkpoints else None
