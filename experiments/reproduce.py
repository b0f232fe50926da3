"""The one command: `python -m experiments.reproduce` (or `make reproduce`).

First version: recurrence, the first claim of Table 6. It trains, evaluates and writes a report.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from experiments import recurrence
from experiments.jobs import evaluate_all, train_all
from txl_lightning.errors import UserError
from txl_lightning.reporting.machine import processor
from txl_lightning.reporting.tables import markdown_table


@dataclass(frozen=True)
class Size:
    """What a profile means for the report (its model and lengths are in `conf/profile`).

    Args:
        seeds: runs of every arm.
        memories: memory lengths at evaluation, in multiples of training's.
        note: what to think of the figures.
    """

    seeds: list[int]
    memories: list[int]
    note: str


SIZES = {
    "smoke": Size([1], [0, 1, 2], "This is a smoke run: it shows that everything works, its figures mean nothing."),
    "laptop": Size([1, 2], [0, 1, 2, 4], "These are small models; their figures are not the paper's."),
}


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line, run, and print where the report is."""
    parser = argparse.ArgumentParser(prog="python -m experiments.reproduce", description=__doc__)
    parser.add_argument("--profile", choices=SIZES, default="laptop")
    parser.add_argument("--directory", type=Path, default=None, help="default: reports/PROFILE")
    parser.add_argument("--parallel", type=int, default=max(1, min(2, os.cpu_count() or 1)), help="jobs side by side")
    parser.add_argument("overrides", nargs="*", help="passed to every txl train, such as data=file data.path=…")
    options = parser.parse_args(arguments)
    if options.parallel < 1:
        parser.error(f"--parallel {options.parallel}: must be an integer >= 1")
    try:
        report = reproduce(options.profile, options.directory, options.parallel, options.overrides)
    except UserError as error:
        print(f"reproduce: {error}", file=sys.stderr)
        return 2
    print(f"report: {report}")
    return 0


def reproduce(profile: str, directory: Path | None, parallel: int, overrides: list[str]) -> Path:
    """Train, evaluate, write `report.md`, `results.json` and the figure; return the report's path."""
    started = time.perf_counter()
    size = SIZES[profile]
    directory = (directory or Path("reports") / profile).resolve()
    runs = directory / "runs"
    jobs = recurrence.plan(profile, size.seeds, overrides)
    print(f"{len(jobs)} runs of profile {profile}, {parallel} side by side, into {directory}", flush=True)
    metrics = train_all(jobs, runs, parallel)
    if any("val/bpc" not in run for run in metrics.values()):
        raise UserError("data: this report is in bits per character; use a corpus of bytes or characters")
    mem_len = max(run["evaluation"]["mem_len"] for run in metrics.values())
    mem_lens = [mem_len * factor for factor in size.memories]
    print(f"  evaluating at memory lengths {mem_lens}", flush=True)
    scores = evaluate_all(jobs, runs, mem_lens, parallel)
    table, figures = recurrence.table(jobs, scores)
    recurrence.learning_curves(directory / "learning_curves.png", jobs, runs)
    results: dict[str, Any] = {
        "profile": profile,
        "tokens_scored": next(iter(scores[jobs[0].name].values())).tokens,
        "recurrence": {"test": figures, "claim": recurrence.verdict(figures, mem_len)},
        "runs": {job.name: {"overrides": list(job.overrides), "seed": job.seed, **metrics[job.name]} for job in jobs},
        "seconds": round(time.perf_counter() - started, 1),
        "machine": {"processor": processor(), "cores": os.cpu_count(), "python": platform.python_version()},
        "versions": {name: version(name) for name in ("torch", "lightning", "txl_lightning")},
    }
    (directory / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    path = directory / "report.md"
    path.write_text(report_text(results, table, size, overrides))
    return path


def report_text(results: dict[str, Any], table: str, size: Size, overrides: list[str]) -> str:
    """The report in Markdown."""
    runs = list(results["runs"].values())
    run, machine, evaluation = runs[0], results["machine"], runs[0]["evaluation"]
    command = ["make", "reproduce", f"PROFILE={results['profile']}"]
    command += [f"ARGS={shlex.join(overrides)}"] if overrides else []
    seeds = ", ".join(map(str, size.seeds))
    training = ", ".join(f"{run['seconds']:.0f} s" for run in runs)
    facts = {
        "command": f"`{shlex.join(command)}`",
        "corpus": f"{run['corpus']['name']}, {run['corpus']['level']} level, SHA-256 {run['corpus']['sha256'][:16]}…",
        "model": f"{run['parameters']:,} parameters, {run['steps']:,} steps, {run['tokens']:,} tokens; best validation",
        "evaluation": (
            f"test split, {results['tokens_scored']:,} tokens, segments of {evaluation['segment_len']}, "
            f"{evaluation['batch_size']} streams that start without context"
        ),
        "machine": f"{machine['processor']}, {machine['cores']} cores, Python {machine['python']}",
        "versions": ", ".join(f"{name} {number}" for name, number in results["versions"].items()),
        "time": f"{results['seconds']:.0f} s in all; training {training}",
    }
    return f"""# Transformer-XL: does recurrence help?

{size.note}

## Table 6, recurrence: test loss in bits per {run["corpus"]["level"]}

{table}
Columns are memory lengths at evaluation on the same weights; mean and standard error over seeds {seeds}.
The paper's column is its perplexity on WikiText-103 with 128M parameters, training lengths → best length.

**Claim: recurrence helps.** In this run: *{results["recurrence"]["claim"]}*. Rule: it holds if every seed with
recurrence, at its training's memory length, is better than every seed without, at the length that suits it best;
within noise if they overlap.

![learning curves](learning_curves.png)

Validation during training (evaluation lengths as in training), on the first segments of each stream.

## How it was measured

{markdown_table(["", ""], list(facts.items()))}"""


if __name__ == "__main__":
    sys.exit(main())
