"""Result files of finished jobs with invented numbers, which depend on the job's name only."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np

from experiments.engine.jobs import Job
from experiments.engine.profiles import Setup

CORPUS = {"name": "sample", "level": "byte", "sha256": "ab" * 32}


@dataclass(frozen=True)
class World:
    """Truth behind the invented numbers.

    Args:
        sign: 1 for differences as in the paper, -1 for reversed ones.
        level: of the tokens.
    """

    sign: int = 1
    level: str = "byte"


PAPER = World()


def write_outcomes(setup: Setup, jobs: Sequence[Job], world: World = PAPER) -> None:
    """Write the files that the tables read, for every job; no two numbers of a file are equal by chance."""
    for job in jobs:
        folder = setup.runs / job.name
        folder.mkdir(parents=True, exist_ok=True)
        random_ = random.Random(job.name)
        for name, content in WRITERS[job.command](world, job, random_).items():
            (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
        if "select_on=valid" in job.overrides:
            write_losses(folder, job)
        if job.command == "attention":
            maps, far = np.random.default_rng([*job.name.encode()]), np.arange(40)
            falls = {"all": 0.2, "a": 0.0, "b": 0.19, "d": 0.08}  # the fall of attention with distance
            if world.sign < 0:
                falls = {"all": 0.2, "a": 0.15, "b": 0.01, "d": 0.3}
            rows = {name: np.exp(-fall * far) * maps.uniform(0.9, 1.1, (6, 40)) for name, fall in falls.items()}
            np.savez(folder / "attention.npz", **rows)


def _train(world: World, job: Job, random_: random.Random) -> dict[str, Any]:
    loss = 2 + random_.random()
    metrics = {"corpus": CORPUS | {"level": world.level}, "evaluation": {"segment_len": 32, "batch_size": 64}}
    for name, least in (("steps", 450), ("tokens", 921600), ("parameters", 387040), ("peak_memory_bytes", 600 << 20)):
        metrics[name] = round(least * (1 + random_.random()))
    metrics |= {"seconds": 60 + random_.random(), "val/bpc": loss, "test/bpc": loss + 0.01}
    metrics |= {"val/ppl": 2**loss, "test/ppl": 2 ** (loss + 0.01)}
    rows = [{"tokens": 1000 * i, "val/nll": loss + 1 / i} for i in range(1, 4)]
    return {"metrics.json": metrics, "validation.jsonl": "".join(json.dumps(row) + "\n" for row in rows)}


def _evaluate(world: World, job: Job, random_: random.Random) -> dict[str, Any]:
    """An evaluation as `txl evaluate splits=[valid,test] select_on=valid losses=true` writes it."""
    absolute = "absolute" in job.name or "al_rfou" in job.name
    swept = next((word for word in job.overrides if word.startswith("attention_lengths=")), None)
    trained = 32 if "no_recurrence" in job.name else 64
    longer = not absolute and ("shaw" not in job.name if world.sign > 0 else True)
    gain = (0.02 * world.sign if "shaw" not in job.name else 0.04) * (0.75 + random_.random() / 2)
    init = base_loss(job, world)
    best = init - gain if longer else init
    chosen = random_.choice([128, 256]) if longer else trained
    selected: dict[str, Any] = {
        "attention_length": chosen,
        "init": {"attention_length": trained, **scored(init), "tokens": POSITIONS, "losses": "losses_test_init.npz"},
        "best": {"attention_length": chosen, **scored(best), "tokens": POSITIONS, "losses": "losses_test_best.npz"},
    }
    valid: dict[str, Any] = {"tokens": 9000, **scored(init + random_.random())}
    if swept is None:  # recurrent networks have no attention length
        selected |= {"attention_length": None, "init": {**selected["init"], "attention_length": None}}
        selected |= {"best": selected["init"]}
        valid |= {"sweep": None, "selected": {**selected, "init": {**scored(init + random_.random())}}}
        valid["selected"]["best"] = valid["selected"]["init"]
    else:
        lengths = [int(n) for n in swept.partition("[")[2].rstrip("]").split(",")]
        lengths = [n for n in lengths if n <= trained or not absolute]
        valid["sweep"] = {
            "init": {"attention_length": trained, **scored(init + random_.random())},
            "best": {"attention_length": chosen, **scored(best + random_.random())},
            "attention_length": chosen,
            "lengths": [{"attention_length": n, **scored(2 + random_.random())} for n in lengths],
            "tolerance": 0.001,
        }
    test = {"tokens": 1, "selected": selected}
    corpus = CORPUS | ({"sha256": "cd" * 32} if "shuffled_lines" in job.name else {})
    return {"evaluation.json": {"corpus": corpus, "valid": valid, "test": test}}


POSITIONS = 12_345


def scored(bpc: float) -> dict[str, float]:
    """Return a loss in all units."""
    return {"nll": bpc * math.log(2), "bpc": bpc, "ppl": 2**bpc}


def base_loss(job: Job, world: World) -> float:
    """Return the bits per byte of a run: as in the paper."""
    worse = 0.1 * ("no_recurrence" in job.name) + 0.1 * ("shaw" in job.name) + 0.05 * ("half" in job.name)
    worse += (0.1 if "-half" in job.name else 0.4) * ("absolute" in job.name or "al_rfou" in job.name)
    return 4.2 + world.sign * worse + random.Random(job.name).gauss(0, 0.002)


def write_losses(folder: Path, job: Job) -> None:
    """Write losses whose means are those of the evaluation; the text is the same for all runs."""
    selected = json.loads((folder / "evaluation.json").read_text())["test"]["selected"]
    text = np.random.default_rng(0).gamma(2.0, 0.3, POSITIONS)
    for i, name in enumerate(("init", "best")):
        noise = np.random.default_rng([i, *job.name.encode()]).normal(0, 0.05, POSITIONS)
        nll = text + noise
        nll += selected[name]["nll"] - nll.mean()
        np.savez(folder / selected[name]["losses"], nll=nll.astype(np.float32), positions=np.arange(POSITIONS))


def _recl(world: World, job: Job, random_: random.Random) -> dict[str, Any]:
    word = next(word for word in job.overrides if word.startswith("names="))
    names = word.removeprefix("names=[").removesuffix("]").replace("'", "").split(",")
    others = 64 - 24 * world.sign
    models = []
    for name in names:
        lengths = {}
        for i, r in enumerate(("0.1", "0.5", "1.0")):
            value = (64 if name == "Transformer-XL" else others) - i + random_.randint(-3, 3)
            lengths[r] = {"value": value, "at_least": name == "QRNN" and r != "0.1", "high_at_least": r == "0.5"}
            lengths[r] |= {"guarded": value - random_.randint(1, 5), "guarded_at_least": name == "LSTM"}
            lengths[r] |= {"low": None, "high": None} if name == "LSTM" else {"low": value - 9, "high": value + 8}
        last, error = 2.4 + random_.random(), 0.09 + random_.random() / 10
        model = {"name": name, "recl": lengths, "limit": 32 if name == "Transformer" else None}
        for unit, factor in (("bpc", 1.0), ("ppl", 2.0)):
            model |= {unit: [2.5 * factor, last * factor], f"{unit}_standard_error": [0.1 * factor, error * factor]}
        models.append(model)
    shared = {
        "unit": "ppl" if world.level == "word" else "bpc",
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
                "vanilla/hidden": {"median": length / 2, "min": length / 2 - 21, "max": length / 2 + 20},
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


WRITERS = {
    "train": _train,
    "evaluate": _evaluate,
    "recl": _recl,
    "speed": _speed,
    "attention": _attention,
}


def draw_figures(setup: Setup) -> None:
    """Write the figures that jobs draw; each is one grey pixel, of which no two are alike."""
    names = {"recurrence-relative-full_loss-seed1-attention": ("by_distance", "text", "terms"), "speed": ("speed",)}
    recl = ("gains_r0.1", "contexts", "differences")
    names |= {f"recl-{group}": recl for group in ("group1-seed1", "group2-seed1")}
    for i, (job, figure) in enumerate((job, figure) for job, figures in names.items() for figure in figures):
        if (folder := setup.runs / job).is_dir():
            matplotlib.image.imsave(folder / f"{figure}.png", np.full((1, 1, 3), i / 20))


def small_corpus(folder: Path) -> tuple[str, ...]:
    """Write a small text and return the overrides that choose it, and no other text, whatever this machine has."""
    (folder / "book.txt").write_text("".join(f"line {i}: the square of {i} is {i * i}\n" for i in range(2000)))
    places = (f"data.path={folder}/book.txt", f"data.cache_dir={folder}/cache", f"data.root={folder}")
    return ("data=file", "data.level=byte", *places)
