"""Training run in Weights & Biases: its arm and name, curves over tokens, summary and artifact.

An interrupted training is one run with all curves, not one for each session. Offline, W&B cannot resume a run:
uploading a second folder with the same id replaces the first. Therefore every row is also kept in
`wandb_history.jsonl`. A resumed run starts a new W&B run with an id of its own, repeats the rows up to its checkpoint,
and renames the files of the earlier sessions, so that `wandb sync` does not find them.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import WandbLogger

from txl_lightning.config.encoding_kinds import kind_named
from txl_lightning.config.schemas import Config, RecurrentModelConfig, TransformerXLModelConfig, plain
from txl_lightning.runs.storage import write_checkpoint
from txl_lightning.runs.trained import read_checkpoint
from txl_lightning.training.curve_files import CurveFile

HISTORY = "wandb_history.jsonl"
SUPERSEDED = ".superseded"  # suffix of the .wandb file of an earlier session
TEST = "test/"  # measured after the last step


class RepeatableWandbLogger(WandbLogger):
    """W&B logger that keeps its rows in a file, from which a resumed run repeats them.

    Args:
        run: the W&B run.
        file: `wandb_history.jsonl` of the run directory.
    """

    def __init__(self, run: Any, file: CurveFile) -> None:
        super().__init__(experiment=run)
        self.file = file

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        super().log_metrics(metrics, step)
        self.file.append({"steps": step, "metrics": dict(metrics)})

    def log_series(
        self, panel: str, x: Sequence[float], curves: Mapping[str, Sequence[float]], x_name: str, title: str, step: int
    ) -> None:
        """Log a panel of named curves over a common x, measured after `step` steps."""
        from txl_lightning.reporting.wandb_panels import log_line_series

        log_line_series(self.experiment, panel, x, curves, x_name, title)
        self.file.append({"steps": step, "series": [panel, x, curves, x_name, title]})

    def repeat(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Log the rows of earlier sessions again, in their order."""
        from txl_lightning.reporting.wandb_panels import log_line_series

        for row in rows:
            if "metrics" in row:
                super().log_metrics(row["metrics"], row["steps"])
            elif "series" in row:
                log_line_series(self.experiment, *row["series"])


def earlier_rows(file: CurveFile, step: int, max_steps: int) -> list[dict[str, Any]]:
    """Return the rows up to `step` that earlier sessions logged, and drop the others, which will be measured again."""

    def is_kept(row: dict[str, Any]) -> bool:
        measured_again = step >= max_steps and any(name.startswith(TEST) for name in row.get("metrics", ()))
        return row["steps"] <= step and not measured_again

    return file.keep(is_kept)


def add_run(file: CurveFile, run_id: str) -> None:
    """Note the id of a session's W&B run; step 0, so that a resumed run keeps the line."""
    file.append({"steps": 0, "run": run_id})


def supersede(directory: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rename the offline runs of earlier sessions, whose rows a new run has repeated."""
    for path in _offline_files(directory, rows):
        path.rename(path.with_name(path.name + SUPERSEDED))


def upload_command(directory: Path) -> str | None:
    """Return the command that uploads the offline run of a run directory; None if there is none."""
    files = _offline_files(directory, CurveFile(directory / HISTORY).keep(lambda row: True))
    return f"wandb sync {shlex.quote(str(files[-1].parent))}" if files else None


def _offline_files(directory: Path, rows: Sequence[Mapping[str, Any]]) -> list[Path]:
    ids = [row["run"] for row in rows if "run" in row]
    return [path for run_id in ids for path in directory.glob(f"wandb/offline-run-*-{run_id}/run-{run_id}.wandb")]


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
