"""Assemble everything that the report shows, as `results.schema.json` says."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import torch

from experiments.engine.jobs import Job, code_version, composed
from experiments.engine.outcomes import Outcomes
from experiments.engine.plan import Stopwatch
from experiments.engine.runner import Runner
from experiments.engine.setup import Setup
from experiments.report.sections import Section
from experiments.report.text import RULE
from txl_lightning.reporting.machine import cores, processor

LIBRARIES = ("txl_lightning", "torch", "lightning", "hydra-core", "wandb", "torchmetrics", "datasets")


def assemble(
    setup: Setup,
    jobs: list[Job],
    runner: Runner,
    sections: Sequence[Section],
    claims: list[dict[str, Any]],
    command: str,
    watch: Stopwatch,
) -> dict[str, Any]:
    """Return the content of `results.json`, with the sections themselves in place of their JSON.

    Args:
        setup: settings of the reproduction.
        jobs: all of its jobs, finished.
        runner: that ran them.
        sections: sections of the report, in order.
        claims: judged, as `claims.judged` returns them.
        command: as typed in a shell.
        watch: wall-clock time so far.
    """
    outcomes = Outcomes(setup.runs, setup.figures)
    runs = {job.name: _run(job, runner, outcomes) for job in jobs}
    seconds = dict.fromkeys(("training", "rest"), 0.0)
    for run in runs.values():
        seconds["training" if run["command"] == "train" else "rest"] += run["seconds"]
    return {
        "schema_version": 1,
        "profile": setup.profile.name,
        "note": setup.profile.note,
        "command": command,
        "started": watch.began,
        "seconds": {"wall": round(watch.seconds, 1), **{kind: round(value, 1) for kind, value in seconds.items()}},
        "machine": _machine(setup),
        "versions": {name: version(name) for name in LIBRARIES},
        "code": code_version(),
        "corpora": _corpora(jobs, outcomes),
        "settings": _settings(jobs, outcomes, setup),
        "runs": runs,
        "sections": sections,
        "rule": RULE,
        "claims": claims,
    }


def _run(job: Job, runner: Runner, outcomes: Outcomes) -> dict[str, Any]:
    """Entry of a job under `runs`."""
    run: dict[str, Any] = {
        "command": job.command,
        "arm": job.arm,
        "seed": job.seed,
        "sections": list(job.sections),
        "overrides": list(job.overrides),
        "key": runner.keys[job.name],
        "seconds": runner.record(job)["seconds"],
        "directory": f"runs/{job.name}",
    }
    if job.command == "train":
        metrics = outcomes.metrics(job)
        run |= {name: metrics[name] for name in ("parameters", "steps", "tokens")}
    return run


def _machine(setup: Setup) -> dict[str, Any]:
    """Hardware and Python of this machine."""
    gpus = setup.profile.accelerator == "gpu"
    return {
        "processor": processor(),
        "cores": cores(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if gpus else [],
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def _corpora(jobs: list[Job], outcomes: Outcomes) -> list[dict[str, Any]]:
    """Every corpus once, with the ids of the sections that used it."""
    found: dict[str, dict[str, Any]] = {}
    for job in jobs:
        if job.command == "train":
            corpus = outcomes.metrics(job)["corpus"]
            entry = found.setdefault(corpus["sha256"], {**corpus, "used_by": []})
            entry["used_by"] = list(dict.fromkeys((*entry["used_by"], *job.sections)))
    return list(found.values())


def _optimizers(jobs: list[Job]) -> str:
    """Recipe of the first training, and the optimizers and learning rates of others that differ in them."""
    recipes = [composed(job.overrides).optimizer for job in jobs if job.command == "train"]
    first, *others = dict.fromkeys(f"{recipe.name}, learning rate {recipe.lr:g}" for recipe in recipes)
    also = f"; some arms: {'; '.join(others)}" if others else ""
    schedule = "cosine to 0" if recipes[0].schedule == "cosine" else recipes[0].schedule
    return f"{first}, {recipes[0].warmup_steps} steps of warm-up, {schedule}{also}"


def _settings(jobs: list[Job], outcomes: Outcomes, setup: Setup) -> list[list[str]]:
    """Settings that all runs share, as pairs of text."""
    first = next((job for job in jobs if job.command == "train"), None)
    if first is None:
        return [["profile", setup.profile.name]]
    config, metrics = composed(first.overrides), outcomes.metrics(first)
    evaluation = metrics["evaluation"]
    return [
        ["model", f"{config.model.name}: {metrics['parameters']:,} parameters"],
        [
            "training",
            f"{metrics['steps']:,} steps of {config.data.batch_size} streams × {config.data.segment_len} tokens",
        ],
        ["memory", f"{config.memory.mem_len} tokens in training (0 without recurrence)"],
        ["optimizer", _optimizers(jobs)],
        [
            "evaluation",
            f"{evaluation['batch_size']} streams that start without context; with recurrence a memory, without it a "
            "window before every token; attention length chosen on validation",
        ],
        ["weights", "those of the best validation"],
        ["precision", config.trainer.precision],
        ["overrides", " ".join(setup.overrides) or "none"],
    ]
