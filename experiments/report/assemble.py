"""`results.json`: everything that the report shows, in the form of `results.schema.json`."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import Any

import torch

from experiments.engine.jobs import Job, code_version, composed
from experiments.engine.outcomes import Outcomes
from experiments.engine.runner import Runner
from experiments.engine.session import Stopwatch
from experiments.engine.setup import Setup
from txl_lightning.reporting.machine import cores, processor

LIBRARIES = ("txl_lightning", "torch", "lightning", "hydra-core", "wandb", "torchmetrics", "datasets")


def assemble(
    setup: Setup, jobs: list[Job], runner: Runner, sections: list[dict[str, Any]], command: str, watch: Stopwatch
) -> dict[str, Any]:
    """All of it but the claims, which are judged from it."""
    outcomes = Outcomes(setup.runs, setup.figures)
    runs = {job.name: run_of(job, runner, outcomes) for job in jobs}
    seconds = dict.fromkeys(("training", "rest"), 0.0)
    for run in runs.values():
        seconds["training" if run["command"] == "train" else "rest"] += run["seconds"]
    results: dict[str, Any] = {
        "schema_version": 1,
        "profile": setup.profile.name,
        "note": setup.profile.note,
        "command": command,
        "started": watch.began,
        "seconds": {"wall": round(watch.seconds, 1), **{kind: round(value, 1) for kind, value in seconds.items()}},
        "machine": machine(setup),
        "versions": {name: version(name) for name in LIBRARIES},
        "code": code_version(),
        "corpora": corpora(jobs, outcomes),
        "settings": settings(jobs, outcomes, setup),
        "runs": runs,
        "sections": sections,
    }
    return results


def run_of(job: Job, runner: Runner, outcomes: Outcomes) -> dict[str, Any]:
    """What `results.json` has of a job."""
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


def machine(setup: Setup) -> dict[str, Any]:
    """What it ran on."""
    gpus = setup.profile.accelerator == "gpu"
    return {
        "processor": processor(),
        "cores": cores(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if gpus else [],
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def corpora(jobs: list[Job], outcomes: Outcomes) -> list[dict[str, Any]]:
    """Every corpus once, with the sections that used it."""
    found: dict[str, dict[str, Any]] = {}
    for job in jobs:
        if job.command == "train":
            corpus = outcomes.metrics(job)["corpus"]
            entry = found.setdefault(corpus["sha256"], {**corpus, "used_by": []})
            entry["used_by"] = list(dict.fromkeys((*entry["used_by"], *job.sections)))
    return list(found.values())


def settings(jobs: list[Job], outcomes: Outcomes, setup: Setup) -> list[list[str]]:
    """What all runs have in common, in words."""
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
        ["optimiser", f"{config.optimizer.name}, learning rate {config.optimizer.lr:g}, cosine to 0"],
        [
            "evaluation",
            f"{evaluation['batch_size']} streams that start without context, segments of {evaluation['segment_len']}",
        ],
        ["weights", "those of the best validation"],
        ["precision", config.trainer.precision],
        ["overrides", " ".join(setup.overrides) or "none"],
    ]
