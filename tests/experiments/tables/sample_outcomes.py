"""Result files of finished jobs with invented numbers, which depend on the job's name only."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.engine.jobs import Job
from experiments.engine.setup import Setup

CORPUS = {"name": "sample", "level": "byte", "sha256": "ab" * 32}


@dataclass(frozen=True)
class World:
    """Truth behind the invented numbers.

    Args:
        sign: 1 for differences as in the paper, -1 for reversed ones.
        noise: standard deviation of the loss between seeds, in bits per byte.
    """

    sign: int = 1
    noise: float = 0.002


PAPER = World()


def write_outcomes(setup: Setup, jobs: Sequence[Job], world: World = PAPER) -> None:
    """Write the files that the tables read, for every job."""
    for job in jobs:
        folder = setup.runs / job.name
        folder.mkdir(parents=True, exist_ok=True)
        random_ = random.Random(job.name)
        for name, content in WRITERS[job.command](world, job, random_).items():
            (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
        if job.command == "evaluate":
            write_losses(folder, job)
        if job.command == "attention":
            maps, far = np.random.default_rng(1), np.arange(40)
            falls = {"all": 0.2, "a": 0.0, "b": 0.19, "d": 0.08}  # the fall of attention with distance
            if world.sign < 0:
                falls = {"all": 0.2, "a": 0.15, "b": 0.01, "d": 0.3}
            rows = {name: np.exp(-fall * far) * maps.uniform(0.9, 1.1, (6, 40)) for name, fall in falls.items()}
            np.savez(folder / "attention.npz", **rows)


def _train(world: World, job: Job, random_: random.Random) -> dict[str, Any]:
    loss = 2 + random_.random()
    metrics = {"steps": 450, "tokens": 921600, "parameters": 387040, "seconds": 60.0, "corpus": CORPUS}
    metrics["peak_memory_bytes"] = 600e6
    metrics |= {"val/bpc": loss, "test/bpc": loss + 0.01}
    metrics["evaluation"] = {"segment_len": 32, "batch_size": 64}
    rows = [{"tokens": 1000 * i, "val/bpc": loss + 1 / i} for i in range(1, 4)]
    return {"metrics.json": metrics, "validation.jsonl": "".join(json.dumps(row) + "\n" for row in rows)}


def _evaluate(world: World, job: Job, random_: random.Random) -> dict[str, Any]:
    """An evaluation as `txl evaluate splits=[valid,test] select_on=valid losses=true` writes it."""
    absolute = "absolute" in job.name or "al_rfou" in job.name
    swept = next((word for word in job.overrides if word.startswith("attention_lengths=")), None)
    trained = 32 if "no_recurrence" in job.name else 64
    longer = not absolute and ("shaw" not in job.name if world.sign > 0 else True)
    gain = 0.02 * world.sign if "shaw" not in job.name else 0.04
    init = base_loss(job, world)
    best = init - gain if longer else init
    chosen = 128 if longer else trained
    scored = {"standard_error": {"bpc": 0.01}, "tokens": POSITIONS, "evaluation": {}}
    selected = {
        "chosen_on": "valid",
        "attention_length": chosen,
        "init": {"attention_length": trained, **both(init), **scored, "losses": "losses_test_init.npz"},
        "best": {"attention_length": chosen, **both(best), **scored, "losses": "losses_test_best.npz"},
    }
    valid: dict[str, Any] = {"tokens": 9000, **both(init)}
    if swept is None:  # a recurrent network has no attention length
        selected |= {"attention_length": None, "init": {**selected["init"], "attention_length": None}}
        selected |= {"best": selected["init"]}
    else:
        lengths = [int(n) for n in swept.partition("[")[2].rstrip("]").split(",")]
        lengths = [n for n in lengths if n <= trained or not absolute]
        valid["sweep"] = {
            "unit": "bpc",
            "init": {"attention_length": trained, **both(init)},
            "best": {"attention_length": chosen, **both(best)},
            "attention_length": chosen,
            "lengths": [{"attention_length": n, **both(2 + random_.random())} for n in lengths],
            "tolerance": 0.001,
            "limit": 32 if absolute else None,
        }
        if "unclamped=true" in job.overrides:
            valid["sweep"]["unclamped"] = [{"attention_length": n, **both(3.0)} for n in lengths if n > trained]
    memory = any(word.startswith("memory_at_evaluation=") for word in job.overrides)
    test = {"tokens": POSITIONS, "selected": selected, "memory_at_evaluation": both(2.9) if memory else None}
    return {"evaluation.json": {"valid": valid, "test": test}}


POSITIONS = 12_345


def both(bpc: float) -> dict[str, float]:
    """Return a loss in both units."""
    return {"nll": bpc * math.log(2), "bpc": bpc}


def base_loss(job: Job, world: World) -> float:
    """Return the bits per byte of a run: as in the paper, and as the claims beyond it say."""
    worse = 0.1 * ("no_recurrence" in job.name) + 0.1 * ("shaw" in job.name) + 0.05 * ("half" in job.name)
    worse += (0.4 if "full" in job.name else 0.1) * ("absolute" in job.name or "al_rfou" in job.name)
    later = {"-rope": -0.05, "-alibi": -0.05, "-none": 0.2, "compressed": -0.05, "modern": -0.1}
    worse += sum(difference for part, difference in later.items() if part in job.name)
    return 4.2 + world.sign * worse + random.Random(job.name).gauss(0, world.noise)


def write_losses(folder: Path, job: Job) -> None:
    """Write losses whose means are those of the evaluation; the text is the same for all runs."""
    selected = json.loads((folder / "evaluation.json").read_text())["test"]["selected"]
    text = np.random.default_rng(0).gamma(2.0, 0.3, POSITIONS)
    for name in ("init", "best"):
        noise = np.random.default_rng([len(name), sum(job.name.encode())]).normal(0, 0.05, POSITIONS)
        nll = text + noise
        nll += selected[name]["nll"] - nll.mean()
        np.savez(folder / selected[name]["losses"], nll=nll.astype(np.float32), positions=np.arange(POSITIONS))


def _recl(world: World, job: Job, random_: random.Random) -> dict[str, Any]:
    word = next(word for word in job.overrides if word.startswith("names="))
    names = word.removeprefix("names=[").removesuffix("]").replace("'", "").split(",")
    models = []
    for name in names:
        value = {"Transformer-XL": 64}.get(name, 64 - 24 * world.sign)
        bounds = {"low": value - 8, "high": value + 8} if name != "LSTM" else {"low": None, "high": None}
        difference = value - (64 - 24 * world.sign)
        bounds["high_at_least"] = False
        bounds["longer_than"] = {other: [difference - 11, difference + 11] for other in names if other != name}
        models.append(
            {
                "name": name,
                "recl": {r: {"value": value, "at_least": name == "QRNN", **bounds} for r in ("0.1", "0.5", "1.0")},
                "bpc": [2.5, 2.4],
                "bpc_standard_error": [0.1, 0.09],
                "limit": 32 if name == "Transformer" else None,
            }
        )
    shared = {
        "unit": "bpc",
        "contexts": [8, 16],
        "step": 8,
        "positions": {"number": 800, "blocks": 30},
        "split": "test",
    }
    return {"recl.json": {**shared, "corpus": CORPUS, "models": models}}


def _speed(world: World, job: Job, random_: random.Random) -> dict[str, Any]:
    results = [
        {
            "level": "char",
            "attention_len": length,
            "ratios": {
                "vanilla/hidden": {"median": length / 2, "min": length / 2 - 20, "max": length / 2 + 20},
                "vanilla/cached": {"median": length / 1.5},
            },
            "seconds_per_token": {
                "vanilla": {
                    "median": length * 3e-5,
                    "rounds": [(length * x * 1e-3) ** world.sign for x in (3.0, 3.01, 2.99)],
                },
                "hidden": {"rounds": [0.9, 0.91, 0.92]},
            },
        }
        for length in (800, 1800, 3000)
    ]
    return {"speed.json": {"results": results}}


def _attention(world: World, job: Job, random_: random.Random) -> dict[str, Any]:
    maps = {"heads": [[0, 0]] * 6, "queries": 5000, "corpus": CORPUS, "split": "valid", "distances": 40}
    return {"attention.json": maps}


def _generate(world: World, job: Job, random_: random.Random) -> dict[str, Any]:
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
