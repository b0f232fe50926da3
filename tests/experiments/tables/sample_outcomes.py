"""Result files of finished jobs with invented numbers, which depend on the job's name only."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.engine.jobs import Job
from experiments.engine.setup import Setup

CORPUS = {"name": "sample", "level": "byte", "sha256": "ab" * 32}


def write_outcomes(setup: Setup, jobs: Sequence[Job]) -> None:
    """Write the files that the tables read, for every job."""
    for job in jobs:
        folder = setup.runs / job.name
        folder.mkdir(parents=True, exist_ok=True)
        random_ = random.Random(job.name)
        for name, content in WRITERS[job.command](setup, job, random_).items():
            (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
        if job.command == "attention":
            maps = np.random.default_rng(1)
            np.savez(folder / "attention.npz", **{name: maps.random((6, 40)) for name in ("all", "a", "b", "d")})


def _train(setup: Setup, job: Job, random_: random.Random) -> dict[str, Any]:
    loss = 2 + random_.random()
    metrics = {"steps": 450, "tokens": 921600, "parameters": 387040, "seconds": 60.0, "corpus": CORPUS}
    metrics |= {"val/bpc": loss, "test/bpc": loss + 0.01}
    metrics["evaluation"] = {"segment_len": 32, "batch_size": 64}
    rows = [{"tokens": 1000 * i, "val/bpc": loss + 1 / i} for i in range(1, 4)]
    return {"metrics.json": metrics, "validation.jsonl": "".join(json.dumps(row) + "\n" for row in rows)}


def _evaluate(setup: Setup, job: Job, random_: random.Random) -> dict[str, Any]:
    absolute = "absolute" in job.name or "al_rfou" in job.name
    lengths = [n for n in setup.profile.attention_lengths if n <= 32 or not absolute]
    sweep = {
        "unit": "bpc",
        "init": {"attention_length": 32 if "no_recurrence" in job.name else 64},
        "lengths": [{"attention_length": n, "bpc": 2 + random_.random()} for n in lengths],
        "tolerance": 0.001,
        "limit": 32 if absolute else None,
    }
    return {"evaluation.json": {"test": {"tokens": 102400, "sweep": sweep}}}


def _recl(setup: Setup, job: Job, random_: random.Random) -> dict[str, Any]:
    names = next(word for word in job.overrides if word.startswith("names="))
    models = []
    for name in names.removeprefix("names=[").removesuffix("]").replace("'", "").split(","):
        value = random_.randrange(16, 128, 8)
        bounds = {"low": value - 8, "high": value + 8} if name != "LSTM" else {"low": None, "high": None}
        models.append(
            {
                "name": name,
                "recl": {r: {"value": value, "at_least": name == "QRNN", **bounds} for r in ("0.1", "0.5", "1.0")},
                "bpc": [2.5, 2.4],
                "bpc_standard_error": [0.1, 0.09],
                "limit": 32 if name == "Transformer" else None,
            }
        )
    shared = {"unit": "bpc", "contexts": [8, 16], "step": 8, "positions": {"number": 800}, "split": "test"}
    return {"recl.json": {**shared, "corpus": CORPUS, "models": models}}


def _speed(setup: Setup, job: Job, random_: random.Random) -> dict[str, Any]:
    results = [
        {
            "level": "char",
            "attention_len": length,
            "ratios": {
                "vanilla/hidden": {"median": length / 2, "min": length / 2 - 20, "max": length / 2 + 20},
                "vanilla/cached": {"median": length / 1.5},
            },
            "seconds_per_token": {"vanilla": {"median": length * 3e-5}},
        }
        for length in (800, 1800, 3000)
    ]
    return {"speed.json": {"results": results}}


def _attention(setup: Setup, job: Job, random_: random.Random) -> dict[str, Any]:
    maps = {"heads": [[0, 0]] * 6, "queries": 5000, "corpus": CORPUS, "split": "valid", "distances": 40}
    return {"attention.json": maps}


def _generate(setup: Setup, job: Job, random_: random.Random) -> dict[str, Any]:
    return {
        "generation.json": {
            "options": {"n_tokens": 500, "top_k": 40, "temperature": 1.0},
            "prompt": {"tokens": [1, 2, 3], "text": "def"},
            "continuation": " f(x):",
            "samples": [{"text": " g(y):\n"}, {"text": " h(z):\n"}],
        }
    }


WRITERS = {
    "train": _train,
    "evaluate": _evaluate,
    "recl": _recl,
    "speed": _speed,
    "attention": _attention,
    "generate": _generate,
}


def draw_figures(setup: Setup, png: bytes) -> None:
    """Write the figures that jobs draw, all of them the same PNG."""
    names = {"attention": ("by_distance", "text", "terms"), "speed": ("speed",)}
    names |= {f"recl-group{group}": ("gains_r0.1", "contexts") for group in (1, 2)}
    for job, figures in names.items():
        for figure in figures:
            if (folder := setup.runs / job).is_dir():
                (folder / f"{figure}.png").write_bytes(png)


def small_corpus(folder: Path) -> tuple[str, ...]:
    """Write a small text and return the overrides that choose it."""
    (folder / "book.txt").write_text("".join(f"line {i}: the square of {i} is {i * i}\n" for i in range(2000)))
    return ("data=file", f"data.path={folder}/book.txt", f"data.cache_dir={folder}/cache")
