"""Content of `results.json`: every number in the report, and what it was made with."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from experiments.claims import FINDINGS, judge
from experiments.engine.jobs import Job, Outcomes, composed
from experiments.engine.plan import Plan
from experiments.sections import Section
from txl_lightning.errors import cores
from txl_lightning.multirun import checksum, read_json
from txl_lightning.reporting import gpus, processor
from txl_lightning.reporting.code import commit

LIBRARIES = ("txl_lightning", "torch", "lightning", "hydra-core", "numpy")


@dataclass(frozen=True)
class Effort:
    """Wall-clock seconds for the whole command over all calls; each call after the first continued a stopped one."""

    seconds: float = 0.0
    calls: int = 0


def effort_before(directory: Path, finished: set[str]) -> Effort:
    """Return the earlier calls' effort from their report.

    It counts from nothing again if a finished report is made anew, or no report is left.
    """
    results = read_json(directory / "results.json")
    is_over = results.get("finished") and not finished.issuperset(results["runs"])
    if not results or not finished or is_over:
        return Effort()
    seconds = results["seconds"]
    return Effort(seconds["wall"], seconds.get("calls", 1))


def assemble(
    plan: Plan, outcomes: Outcomes, sections: Sequence[Section], effort: Effort
) -> dict[str, Any]:
    """Return what `results.json` holds.

    Args:
        plan: all jobs.
        outcomes: results from finished jobs.
        sections: the report's sections, in order.
        effort: time and calls so far.
    """
    profile = plan.setup.profile
    done = [job for job in plan.jobs if outcomes.has(job)]
    trained = [job for job in done if job.command == "train"]
    training_seconds = sum(plan.seconds(job) for job in trained)
    return {
        "schema_version": 3,
        "finished": len(done) == len(plan.jobs),
        "jobs": {"finished": len(done), "planned": len(plan.jobs)},
        "profile": profile.name,
        "title": profile.title,
        "differences": profile.differences,
        "note": profile.note,
        "verdicts": profile.verdicts,
        "command": plan.setup.command,
        "seconds": {
            "wall": round(effort.seconds, 1),
            "training": round(training_seconds, 1),
            "calls": effort.calls,
        },
        "machine": {
            "processor": processor(),
            "cores": cores(),
            "gpus": gpus(),
            "python": platform.python_version(),
            "platform": platform.platform(),
        },
        "versions": {name: version(name) for name in LIBRARIES},
        "commit": commit(),
        "corpora": _corpora(trained, outcomes),
        "settings": _settings(plan, trained),
        "claims": judge(sections),
        "sections": [_section(section) for section in sections],
        "runs": {job.name: _run(job, plan, outcomes) for job in done},
    }


def _section(section: Section) -> dict[str, Any]:
    """Return a section with the paper's finding; its differences are under `claims`."""
    content = asdict(section)
    content.pop("differences")
    content["paper"] = FINDINGS[section.id]
    return content


def _run(job: Job, plan: Plan, outcomes: Outcomes) -> dict[str, Any]:
    """Return a job's entry under `runs`."""
    run: dict[str, Any] = {
        "command": job.command,
        "arm": job.arm,
        "seed": job.seed,
        "overrides": job.overrides,
        "key": checksum(plan.identities[job.name]),
        "seconds": plan.seconds(job),
    }
    if job.command == "train":
        metrics = outcomes.result(job, "metrics.json")
        for name in ("parameters", "steps", "tokens"):
            run[name] = metrics[name]
    return run


def _corpora(trained: Sequence[Job], outcomes: Outcomes) -> list[dict[str, Any]]:
    """Return every corpus that a training read, once."""
    corpora = {}
    for job in trained:
        corpus = outcomes.result(job, "metrics.json")["corpus"]
        names = ("name", "level", "sha256", "by_line")
        corpora[corpus["sha256"]] = {name: corpus[name] for name in names if name in corpus}
    return list(corpora.values())


def _settings(plan: Plan, trained: Sequence[Job]) -> dict[str, str]:
    """Return the settings that the runs share, in words."""
    if not trained:
        return {}
    config = composed(trained[0].overrides)
    return {
        "model": config.model.name,
        "batch": f"{config.data.batch_size} × {config.data.segment_len} tokens",
        "memory": f"{config.memory.mem_len} tokens in training (0 without recurrence)",
        "optimizer": f"{config.optimizer.name}, learning rate {config.optimizer.lr:g}",
        "precision": config.trainer.precision,
        "overrides": " ".join(plan.setup.overrides) or "none",
    }
