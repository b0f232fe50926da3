"""Result files of finished jobs with invented numbers, which depend on the job's name only."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.engine.jobs import Job, merge
from experiments.engine.profiles import Setup
from experiments.reproduce import SECTIONS

CORPUS = {"name": "sample", "level": "byte", "sha256": "ab" * 32}


def write_outcomes(setup: Setup, jobs: Sequence[Job]) -> None:
    """Write the files that the tables read, for every job."""
    for job in jobs:
        folder, random = setup.runs / job.name, np.random.default_rng([*job.name.encode()])
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in WRITERS[job.command](job, random).items():
            if name.endswith(".npz"):
                np.savez(folder / name, **content)
            else:
                (folder / name).write_text(json.dumps(content))


def _train(job: Job, random: np.random.Generator) -> dict[str, Any]:
    sizes = {"steps": 450, "tokens": 921_600, "parameters": 387_040, "peak_memory_bytes": 600 << 20, "seconds": 60.0}
    validation = {"tokens": 1000, "val/nll": 2 + random.random()}
    return {"metrics.json": {"corpus": CORPUS, **sizes, "test/ppl": 25.0}, "validation.jsonl": validation}


def _evaluate(job: Job, random: np.random.Generator) -> dict[str, Any]:
    """An evaluation as `txl evaluate splits=[valid,test] select_on=valid losses=true` writes it."""
    words = [word for word in job.overrides if word.startswith("attention_lengths")]
    lengths = [int(n) for word in words for n in re.findall(r"\d+", word)]
    trained, longer = (64, 128) if lengths else (None, None)  # recurrent networks have no attention length

    def scored(length: int | None) -> dict[str, Any]:
        bpb = 4 + random.random()
        return {"attention_length": length, "nll": bpb * math.log(2), "bpb": bpb, "ppl": 2**bpb}

    swept: dict[str, Any] = {"init": scored(trained), "best": scored(longer), "attention_length": longer}
    swept |= {"lengths": [scored(n) for n in lengths], "tolerance": 0.001}
    test = {at: {**scored(n), "losses": f"{at}.npz"} for at, n in (("init", trained), ("best", longer))}
    found = {"valid": {"sweep": swept if lengths else None, "selected": swept}, "test": {"selected": test}}
    at = np.arange(2500)
    losses = {row["losses"]: {"nll": random.normal(row["nll"], 0.05, 2500), "positions": at} for row in test.values()}
    return {"evaluation.json": {"corpus": CORPUS, **found}, **losses}


def _recl(job: Job, random: np.random.Generator) -> dict[str, Any]:
    names = next(re.findall(r"'(.*?)'", word) for word in job.overrides if word.startswith("names="))
    models = []
    for name in names:
        lengths: dict[str, Any] = {}
        for r in ("0.1", "0.5", "1.0"):
            value, guarded = random.integers(8, 64, 2).tolist()
            lengths[r] = {"value": value, "at_least": False, "guarded": guarded, "guarded_at_least": False}
        models.append({"name": name, "recl": lengths, "limit": 32, "bpb": [2.5, 2.4 + random.random()]})
    grid = {"unit": "bpb", "contexts": [8, 16], "step": 8, "positions": {"number": 800, "blocks": 30}, "split": "test"}
    return {"recl.json": {**grid, "corpus": CORPUS, "models": models}}


def _speed(job: Job, random: np.random.Generator) -> dict[str, Any]:
    rows = []
    for length in (800, 3800):
        of_hidden = dict.fromkeys(("median", "min", "max"), length / 2)
        ratios = {"vanilla/hidden": of_hidden, "vanilla/cached": {"median": 1.0}}
        seconds = {"vanilla": {"median": 0.1, "rounds": [0.1, 0.1]}, "hidden": {"rounds": [0.2 / length] * 2}}
        rows.append({"level": "char", "attention_len": length, "ratios": ratios, "seconds_per_token": seconds})
    return {"speed.json": {"results": rows}}


def _attention(job: Job, random: np.random.Generator) -> dict[str, Any]:
    maps = {"heads": [[0, 0]] * 6, "queries": 5000, "corpus": CORPUS, "split": "valid", "distances": 40}
    means = {name: random.uniform(0.5, 1, (6, 40)) for name in ("all", *"abd")}
    return {"attention.json": maps, "attention.npz": means}


WRITERS = {"train": _train, "evaluate": _evaluate, "recl": _recl, "speed": _speed, "attention": _attention}


def planned(setup: Setup, *sections: str) -> list[Job]:
    """Return the jobs of sections of a reproduction."""
    return merge({name: SECTIONS[name].jobs(setup) for name in sections})


def small_corpus(folder: Path) -> tuple[str, ...]:
    """Write a small text and return the overrides that choose it, and no other text, whatever this machine has."""
    (folder / "book.txt").write_text("".join(f"line {i}: the square of {i} is {i * i}\n" for i in range(2000)))
    places = (f"data.path={folder}/book.txt", f"data.cache_dir={folder}/cache", f"data.root={folder}")
    return ("data=file", "data.level=byte", *places)
