"""Table 6, its first claim: recurrence helps.

The paper found, on WikiText-103 with 128M parameters, a perplexity of 27.02 with recurrence and 29.59
without (training lengths), 26.77 and 29.02 at the best attention lengths.
This trains the same small model with and without memory, evaluates both at several memory lengths, and
writes a table and the picture of the learning curves.
"""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

from experiments.jobs import Training
from experiments.paper import table_6
from txl_lightning.evaluation.scoring import Score
from txl_lightning.reporting.figures import line_figure
from txl_lightning.reporting.tables import markdown_table

ARMS = {"with recurrence": "memory=on", "without recurrence": "memory=off"}


def plan(profile: str, seeds: list[int], overrides: list[str]) -> list[Training]:
    """Both arms for every seed; the arms of one seed are neighbours, so that they run side by side."""
    return [
        Training(
            f"{arm.replace(' ', '_')}_seed{seed}", arm, seed, (f"profile={profile}", override, "logger=csv", *overrides)
        )
        for seed in seeds
        for arm, override in ARMS.items()
    ]


def table(jobs: list[Training], scores: dict[str, dict[int, Score]]) -> tuple[str, dict[str, Any]]:
    """Test bpc by arm and memory length: mean over seeds and, of two or more, the standard error."""
    mem_lens = list(next(iter(scores.values())))
    figures: dict[str, Any] = {}
    rows = []
    for arm in ARMS:
        by_length = {m: [scores[job.name][m].nll / math.log(2) for job in jobs if job.arm == arm] for m in mem_lens}
        figures[arm] = {str(m): {"bpc": values, "mean": statistics.mean(values)} for m, values in by_length.items()}
        paper = table_6(recurrence=arm == "with recurrence")
        rows.append([arm, *(_mean(values) for values in by_length.values()), f"{paper.ppl_init} → {paper.ppl_best}"])
    header = ["", *(f"memory {m}" for m in mem_lens), "paper: ppl, WikiText-103"]
    return markdown_table(header, rows), figures


def verdict(figures: dict[str, Any], mem_len: int) -> str:
    """What this run says of the claim.

    Models with recurrence count at the memory length of their training, those without at the one that
    suits them best. `holds` if every seed with recurrence is better than every seed without; `does not
    hold` if it is the other way round; `within noise` if they overlap. One seed is no evidence.
    """
    on = figures["with recurrence"][str(mem_len)]["bpc"]
    off = min(figures["without recurrence"].values(), key=lambda x: x["mean"])["bpc"]
    if len(on) < 2:
        return "not judged (one seed)"
    if max(on) < min(off):
        return "holds"
    return "does not hold" if min(on) > max(off) else "within noise"


def learning_curves(path: Path, jobs: list[Training], directory: Path) -> None:
    """Validation bpc against tokens for both arms, a line a seed."""
    curves: dict[str, list[tuple[list[float], list[float]]]] = {arm: [] for arm in ARMS}
    for job in jobs:
        rows = [json.loads(line) for line in (directory / job.name / "validation.jsonl").read_text().splitlines()]
        curves[job.arm].append(([row["tokens"] for row in rows], [row["val/bpc"] for row in rows]))
    line_figure(
        path, curves, "training tokens", "validation loss (bits per byte)", "Transformer-XL with and without recurrence"
    )


def _mean(values: list[float]) -> str:
    mean = f"{statistics.mean(values):.3f}"
    if len(values) < 2:
        return mean
    return f"{mean} ± {statistics.stdev(values) / math.sqrt(len(values)):.3f}"
