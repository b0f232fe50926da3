"""Training run in Weights & Biases: its arm and name, curves over tokens, summary and artifact."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import WandbLogger

from txl_lightning.config.encoding_kinds import kind_named
from txl_lightning.config.schemas import Config, RecurrentModelConfig, TransformerXLModelConfig, plain
from txl_lightning.runs.storage import write_checkpoint
from txl_lightning.runs.trained import read_checkpoint
from txl_lightning.training.loggers.curve_file import CurveFile
from txl_lightning.training.loggers.wandb_history import (
    HISTORY,
    RepeatableWandbLogger,
    add_run,
    earlier_rows,
    supersede,
)

OVER_TOKENS = ("train/*", "context/*", "recl/*")
BEST = ("val/nll", "val/bpc", "val/ppl", "val/bpb")  # their minimum is a summary of the run: `val/nll.min`
FINAL = "final"  # prefix of the values of `metrics.json`: `final/val/nll` is of the best weights on the whole split
SPEED = "train/tokens_per_second"


def start(
    config: Config, directory: Path, n_parameters: int, step: int | None, online_id: str | None
) -> RepeatableWandbLogger:
    """Start a W&B run with the whole config, in group `logger.group` and tagged by arm.

    The x axis of all curves is `tokens`. A resumed run has the curves of its earlier sessions too: online W&B continues
    them, offline they are repeated (see `wandb_history`).

    Args:
        config: config of the run.
        directory: run directory.
        n_parameters: number of trained parameters.
        step: step from which the run of this directory continues; None for another run.
        online_id: id of an online W&B run to continue; None for a new one.

    Raises:
        OptionError: W&B refuses the run.
    """
    from txl_lightning.reporting.wandb_panels import start_run

    file = CurveFile(directory / HISTORY)
    earlier = earlier_rows(file, -1 if step is None else step, config.trainer.max_steps)
    recorded = {**plain(config), "parameters": n_parameters, "arm": ", ".join(arm(config))}
    run = start_run(
        directory, config.logger, "train", recorded, name=run_name(config), tags=arm(config), run_id=online_id
    )
    for metric in OVER_TOKENS:
        run.define_metric(metric, step_metric="tokens")
    for metric in BEST:
        run.define_metric(metric, step_metric="tokens", summary="min")
    run.define_metric(SPEED, step_metric="tokens", summary="mean")
    logger = RepeatableWandbLogger(run, file)
    if online_id is None:
        add_run(file, run.id)
        logger.repeat(earlier)
        supersede(directory, earlier)
    return logger


def finish(logger: WandbLogger, config: Config, metrics: Mapping[str, Any], best: Path | None) -> None:
    """Write the metrics as summary, the best weights as artifact, and end the run.

    A failed write of the weights is reported and does not fail the run; `metrics.json` exists by then.
    """
    run = logger.experiment
    run.summary.update({f"{FINAL}/{name}": value for name, value in metrics.items()})
    if config.logger.artifacts and best is not None:
        numbers = {name: value for name, value in metrics.items() if isinstance(value, (int, float))}
        try:
            log_weights(logger, best, {**numbers, "arm": ", ".join(arm(config))})
        except (OSError, ValueError) as error:
            print(f"could not write the artifact of the weights: {error}", file=sys.stderr, flush=True)
    run.finish()


def log_weights(logger: WandbLogger, best: Path, metadata: Mapping[str, Any]) -> None:
    """Log the artifact `model-RUN`: the best weights with config and vocabulary, usable as `checkpoint=`.

    Without the optimizer's state the file has a third of the checkpoint's size. Its name contains the step: an
    offline run refers to the file until `wandb sync`, so a resumed run must not overwrite it.
    """
    from txl_lightning.reporting.wandb_panels import log_files

    contents = read_checkpoint(best)
    kept = {name: contents[name] for name in ("state_dict", "global_step", "txl_lightning")}
    path = best.resolve().with_name(f"weights_step_{kept['global_step']}.ckpt")
    write_checkpoint(kept, path)
    log_files(logger.experiment, f"model-{logger.experiment.id}", "model", [path], metadata, in_place=True)


def arm(config: Config) -> list[str]:
    """Return the options that the ablation compares, in words; sizes, lengths and seed are not among them."""
    if isinstance(config.model, RecurrentModelConfig):
        return [config.model.name, f"{config.loss} loss"]
    assert isinstance(config.model, TransformerXLModelConfig)
    words = [config.encoding.name, "recurrence" if config.memory.mem_len else "no recurrence", f"{config.loss} loss"]
    if config.memory.compression is not None:
        words[1] = f"compressive memory ({config.memory.compression} {config.memory.rate}:1)"
    has_position_terms = kind_named(config.encoding.name).terms != "a"
    fewer_terms = has_position_terms and config.model.terms != "abcd"
    return [*words, f"terms {config.model.terms or 'none'}"] if fewer_terms else words


def run_name(config: Config) -> str:
    """Return the arm and the options that are most often swept with it."""
    compressed = f" + {config.memory.compressed_len}" if config.memory.compressed_len else ""
    lengths = f"memory {config.memory.mem_len}{compressed}, segment {config.data.segment_len}"
    return f"{', '.join(arm(config))}; {lengths}, lr {config.optimizer.lr:g}, seed {config.seed}"
