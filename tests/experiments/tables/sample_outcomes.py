"""Result files of finished jobs with invented numbers, which depend on the job's name only."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from experiments.engine.jobs import Job, Outcomes
from experiments.engine.profiles import Setup
from experiments.reproduce import plan_jobs

CORPUS = {"name": "sample", "level": "byte", "sha256": "ab" * 32}
TRAINED_LENGTH = 64
BEST_LENGTH = 128


def finished(setup: Setup) -> Outcomes:
    """Return the outcomes of all sections, after writing the files that the tables read."""
    jobs = plan_jobs(setup)
    for job in jobs:
        write_outcome(setup, job)
    names = frozenset(job.name for job in jobs)
    return Outcomes(setup.runs, setup.figures, tuple(jobs), names)


def write_outcome(setup: Setup, job: Job) -> None:
    """Write the files of a job that the tables read."""
    folder = setup.runs / job.name
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng([*job.name.encode()])
    for name, content in WRITERS[job.command](job, random).items():
        if name.endswith(".npz"):
            np.savez(folder / name, **content)
        else:
            (folder / name).write_text(json.dumps(content))


def _train(job: Job, random: np.random.Generator) -> dict[str, Any]:
    metrics = {"corpus": CORPUS, "steps": 450, "tokens": 921_600, "parameters": 387_040}
    validation = {"tokens": 1000, "val/nll": 2 + random.random()}
    return {"metrics.json": metrics, "validation.jsonl": validation}


def _evaluate(job: Job, random: np.random.Generator) -> dict[str, Any]:
    """Return an evaluation as `txl evaluate attention_lengths=[…] losses=true` writes it."""
    has_lengths = any(word.startswith("attention_lengths") for word in job.overrides)
    lengths = {"init": None, "best": None}  # recurrent networks have no attention length
    if has_lengths:
        lengths = {"init": TRAINED_LENGTH, "best": BEST_LENGTH}
    files: dict[str, Any] = {}
    selected = {}
    for at, length in lengths.items():
        bpb = 4 + random.random()
        nll = bpb * math.log(2)
        losses = random.normal(nll, 0.05, 2500)
        files[f"{at}.npz"] = {"nll": losses, "positions": np.arange(2500)}
        entry = {
            "attention_length": length,
            "nll": nll,
            "bpb": bpb,
            "losses": f"{at}.npz",
        }
        selected[at] = entry
    files["evaluation.json"] = {"corpus": CORPUS, "test": {"selected": selected}}
    return files


def _recl(job: Job, random: np.random.Generator) -> dict[str, Any]:
    names = next(word for word in job.overrides if word.startswith("names="))
    models = []
    for name in re.findall(r"'(.*?)'", names):
        lengths = {}
        for r in ("0.1", "0.5", "1.0"):
            value, guarded = random.integers(8, 64, 2).tolist()
            length = {"value": value, "guarded": guarded}
            lengths[r] = {**length, "at_least": False, "guarded_at_least": False}
        models.append(
            {
                "name": name,
                "recl": lengths,
                "bpb": [2.5, 2.4 + random.random()],
            }
        )
    return {"recl.json": {"models": models}}


def _speed(job: Job, random: np.random.Generator) -> dict[str, Any]:
    rows = []
    for length in (800, 3800):
        ratios = {"vanilla/hidden": {"median": length / 2}, "vanilla/cached": {"median": 1.0}}
        seconds = {
            "vanilla": {"median": 0.1, "rounds": [0.1, 0.1]},
            "hidden": {"rounds": [0.2 / length] * 2},
        }
        rows.append({"attention_len": length, "ratios": ratios, "seconds_per_token": seconds})
    return {"speed.json": {"results": rows}}


def _attention(job: Job, random: np.random.Generator) -> dict[str, Any]:
    means = {name: random.uniform(0.5, 1, (6, 40)) for name in ("all", "a", "b", "d")}
    return {"attention.json": {}, "attention.npz": means}


WRITERS = {
    "train": _train,
    "evaluate": _evaluate,
    "recl": _recl,
    "speed": _speed,
    "attention": _attention,
}


def small_corpus(folder: Path) -> tuple[str, ...]:
    """Write a small text and return the overrides that choose it, and no other text, whatever this machine has."""
    lines = [f"line {i}: the square of {i} is {i * i}\n" for i in range(2000)]
    (folder / "book.txt").write_text("".join(lines))
    return (
        "data=file",
        "data.level=byte",
        f"data.path={folder}/book.txt",
        f"data.cache_dir={folder}/cache",
        f"data.root={folder}",
    )
