"""Take the finished jobs of an unfinished reproduction from one machine to the next, without weights.

save       from reports/night to the folder `parts` beside this file: every finished measurement, and every training
           that no other job needs any more. Losses of tokens are kept as means of 128 neighbours.
restore    the other way; `make reproduce PROFILE=night` of the same commit then runs what is missing.

The folder and this file go when the run is complete: `python experiments/results/night/parts.py save|restore`.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np

from experiments.engine.plan import READ, RECORD, Plan
from experiments.reproduce import parse, plan

PARTS, BLOCK = Path(__file__).with_name("parts"), 128


def save(planned: Plan) -> None:
    """Copy the files that a report reads."""
    finished = {job.name for job in planned.finished}
    for job in planned.finished:
        if any(job.name in other.needs for other in planned.jobs if other.name not in finished):
            continue
        for path in planned.folder(job).path.iterdir():
            kept = PARTS / job.name / path.name
            kept.parent.mkdir(parents=True, exist_ok=True)
            if path.name.startswith("losses_test"):
                with np.load(path) as file:
                    order = np.argsort(file["positions"], kind="stable")
                    positions, nll = file["positions"][order], file["nll"][order]
                first = np.flatnonzero(np.diff(positions, prepend=-2) != 1)
                blocks = np.arange(0, len(nll), BLOCK)
                means = np.add.reduceat(nll.astype(np.float64), blocks) / np.diff(blocks, append=len(nll))
                np.savez_compressed(
                    kept,
                    starts=positions[first],
                    lengths=np.diff(first, append=len(nll)),
                    means=means.astype(np.float32),
                )
            elif (
                path.suffix in READ
                and path.name != "tokenizer.json"
                and not (job.command == "evaluate" and path.suffix != ".json")
                and path.stem != "losses"
            ):
                shutil.copy(path, kept)
                if path.suffix == ".json":
                    kept.write_text(path.read_text().replace(str(planned.setup.runs), "@runs"))
    shutil.copy(planned.setup.directory / "precision.json", PARTS)


def restore(planned: Plan) -> None:
    """Write the files back and record them as finished."""
    for job in planned.jobs:
        folder = planned.folder(job)
        if (PARTS / job.name).is_dir() and not folder.record.get("done"):
            shutil.copytree(PARTS / job.name, folder.path, dirs_exist_ok=True)
            for path in folder.path.glob("losses_test*.npz"):
                with np.load(path) as file:
                    starts, lengths, means = file["starts"], file["lengths"], file["means"]
                positions = np.concatenate([np.arange(s, s + n) for s, n in zip(starts, lengths, strict=True)])
                np.savez(path, positions=positions, nll=means.repeat(BLOCK)[: len(positions)])
            folder.write({**folder.record, "files": planned._files(job)})
    print(f"{len(planned.finished)} of {len(planned.jobs)} jobs finished; of a job left out, {RECORD} has another key")


if __name__ == "__main__":
    setup = parse(["--profile", "night", "--logger", "csv", *sys.argv[2:]])
    if sys.argv[1] == "restore":
        setup.directory.mkdir(parents=True, exist_ok=True)
        shutil.copy(PARTS / "precision.json", setup.directory)
    {"save": save, "restore": restore}[sys.argv[1]](plan(setup))
