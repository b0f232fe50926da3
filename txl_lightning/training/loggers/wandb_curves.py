"""A training run in Weights & Biases: its arm and name, curves over tokens, and what stays when it has ended."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import WandbLogger

from txl_lightning.config.schemas import Config, RecurrentModelConfig, TransformerXLModelConfig, plain
from txl_lightning.runs.storage import write_checkpoint
from txl_lightning.runs.trained import read_checkpoint

OVER_TOKENS = ("train/*", "context/*", "recl/*")
BEST = ("val/nll", "val/bpc", "val/ppl")  # the lowest of the curve is the run's summary: `val/nll.min`
FINAL = "final"  # `final/val/nll`: what `metrics.json` calls `val/nll`, of the best weights on the whole split
SPEED = "train/tokens_per_second"


def start(config: Config, directory: Path, n_parameters: int, run_id: str | None) -> WandbLogger:
    """A run grouped by table (`logger.group`), tagged by arm, with everything that was configured.

    The x axis of curves is `tokens`, of all sessions: the curve of a resumed run joins the one before.

    Raises:
        OptionError: W&B does not take the run.
    """
    from txl_lightning.reporting.wandb_panels import start_run

    known = {**plain(config), "parameters": n_parameters, "arm": ", ".join(arm(config))}
    run = start_run(directory, config.logger, "train", known, name=run_name(config), tags=arm(config), run_id=run_id)
    for metric in OVER_TOKENS:
        run.define_metric(metric, step_metric="tokens")
    for metric in BEST:
        run.define_metric(metric, step_metric="tokens", summary="min")
    run.define_metric(SPEED, step_metric="tokens", summary="mean")
    return WandbLogger(experiment=run)


def finish(logger: WandbLogger, config: Config, metrics: Mapping[str, Any], best: Path | None) -> None:
    """`metrics.json` as summaries, the best weights as an artifact, and the end of the run.

    A disk or a server that refuses the weights is reported; the run's figures are safe by then.
    """
    run = logger.experiment
    run.summary.update({f"{FINAL}/{name}": value for name, value in metrics.items()})
    if config.logger.artifacts and best is not None:
        figures = {name: value for name, value in metrics.items() if isinstance(value, (int, float))}
        try:
            log_weights(logger, best, {**figures, "arm": ", ".join(arm(config))})
        except (OSError, ValueError) as error:
            print(f"the weights could not be made an artifact: {error}", file=sys.stderr, flush=True)
    run.finish()


def log_weights(logger: WandbLogger, best: Path, metadata: Mapping[str, Any]) -> None:
    """The artifact `model-RUN`: the best weights with configuration and vocabulary, for `checkpoint=` and others.

    Without the optimiser's state they are a third of the checkpoint. The file is named by its step, because an
    offline run refers to it until `wandb sync`: a run that goes on must not replace it.
    """
    from txl_lightning.reporting.wandb_panels import log_files

    contents = read_checkpoint(best)
    kept = {name: contents[name] for name in ("state_dict", "global_step", "txl_lightning")}
    path = best.resolve().with_name(f"weights_step_{kept['global_step']}.ckpt")
    write_checkpoint(kept, path)
    log_files(logger.experiment, f"model-{logger.experiment.id}", "model", [path], metadata, in_place=True)


def arm(config: Config) -> list[str]:
    """What the ablation compares, in words: the same for all sizes, lengths and seeds."""
    if isinstance(config.model, RecurrentModelConfig):
        return [config.model.name, f"{config.loss} loss"]
    assert isinstance(config.model, TransformerXLModelConfig)
    words = [config.encoding.name, "recurrence" if config.memory.mem_len else "no recurrence", f"{config.loss} loss"]
    has_terms = config.encoding.name in ("relative", "shaw") and config.model.terms != "abcd"
    return [*words, f"terms {config.model.terms or 'none'}"] if has_terms else words


def run_name(config: Config) -> str:
    """The arm and what is most often swept beside it."""
    lengths = f"memory {config.memory.mem_len}, segment {config.data.segment_len}"
    return f"{', '.join(arm(config))}; {lengths}, lr {config.optimizer.lr:g}, seed {config.seed}"
