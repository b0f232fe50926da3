"""Losses of test tokens, by run and block of text, from `txl evaluate losses=true`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from experiments.engine.jobs import Job
from experiments.engine.outcomes import Outcomes
from experiments.engine.setup import Setup
from experiments.tables.arms import Arm
from experiments.tables.shared.comparisons import Comparison
from experiments.tables.shared.intervals import (
    MANY_BLOCKS,
    Array,
    Interval,
    SeedSpread,
    difference,
    mean_over_seeds,
    pooled_spread,
)
from experiments.tables.shared.length_sweep import sweep_job
from txl_lightning.errors import UserError

FEWEST_TOKENS, MOST_TOKENS = 1000, 20_000  # of a block
At = Literal["init", "best"]


@dataclass(frozen=True)
class ScoredRuns:
    """Files with the losses of one arm's runs on the test split, a file per seed.

    Args:
        seeds: of the runs.
        init: losses at training's lengths.
        best: losses at the attention length chosen on validation.
        longer_S: whether a run chose a longer attention than training's.
    """

    seeds: tuple[int, ...]
    init: tuple[Path, ...]
    best: tuple[Path, ...]
    longer_S: NDArray[np.bool_]

    def at(self, lengths: At) -> tuple[Path, ...]:
        """Return the files at training's lengths (`init`) or at the chosen length (`best`)."""
        return self.init if lengths == "init" else self.best

    def gain_SB(self, init_SB: Array, best_SB: Array) -> Array:
        """Return init_SB - best_SB for the runs that chose a longer attention, 0 for the others."""
        gains: Array = (init_SB - best_SB) * self.longer_S[:, None]
        return gains


Losses = Mapping[Arm, ScoredRuns]


def scored_runs(runs: Mapping[Arm, Sequence[Job]], setup: Setup, outcomes: Outcomes) -> dict[Arm, ScoredRuns]:
    """Find the files with the losses of all runs."""
    found = {}
    for arm, arm_runs in runs.items():
        init, best, longer = [], [], []
        for run in arm_runs:
            job = sweep_job(arm, run, setup)
            selected = outcomes.result(job, "evaluation.json")["test"]["selected"]
            init.append(outcomes.runs / job.name / selected["init"]["losses"])
            best.append(outcomes.runs / job.name / selected["best"]["losses"])
            longer.append(_chose_longer(selected))
        found[arm] = ScoredRuns(tuple(run.seed or 0 for run in arm_runs), tuple(init), tuple(best), np.array(longer))
    return found


def shared_blocks(*groups: Sequence[Path]) -> tuple[list[Array], Array]:
    """Average losses by block of text, over the positions that all files have.

    Neighbouring tokens are of one document, whose losses have something in common, and blocks are resampled as if they
    had nothing in common. They are therefore as long as thirty of them allow, from 1,000 to 20,000 tokens, and of equal
    length but for a token; a shorter text is one block.

    Returns:
        For each group the mean losses in nats with shape SB, a row per file; and the number of shared positions of each
        block, with shape B.

    Raises:
        UserError: the files share no position.
    """
    losses = {path: _read(path) for group in groups for path in group}
    shared = reduce(_intersection, (positions for positions, _ in losses.values()))
    if not len(shared):
        names = ", ".join(str(path) for path in losses)
        raise UserError(f"no token of the test split was scored in all of these files: {names}")
    block_len = min(MOST_TOKENS, max(FEWEST_TOKENS, len(shared) // MANY_BLOCKS))
    n_blocks = max(1, len(shared) // block_len)
    edges = np.arange(n_blocks + 1) * len(shared) // n_blocks  # no short last block, whose mean would vary most
    first, counts = edges[:-1], np.diff(edges)

    def by_block(path: Path) -> Array:
        positions, nll = losses[path]
        chosen = nll if len(positions) == len(shared) else nll[np.searchsorted(positions, shared)]
        means: Array = np.add.reduceat(chosen, first) / counts
        return means

    return [np.stack([by_block(path) for path in group]) for group in groups], counts.astype(np.float64)


def seed_spread(outcomes: Outcomes, lengths: At) -> SeedSpread:
    """Pool the variance between seeds over all arms of the reproduction with two seeds or more, in nats².

    The loss of a run is that of all its scored tokens.
    """
    return pooled_spread(_by_arm(outcomes, lambda selected: float(selected[lengths]["nll"])))


def gain_spread(outcomes: Outcomes) -> SeedSpread:
    """Pool the variance of the gain of longer attention likewise, over the arms of which a run chose a longer one."""

    def gain(selected: dict[str, Any]) -> float:
        return float(selected["init"]["nll"] - selected["best"]["nll"]) if _chose_longer(selected) else 0.0

    return pooled_spread([gains for gains in _by_arm(outcomes, gain) if any(gains)])


def compare(
    key: str, better: Arm, worse: Arm, lengths: At, losses: Losses, outcomes: Outcomes, paper: float | None = None
) -> Comparison:
    """Return how much lower the loss of one arm is than that of another, on the tokens that all their runs scored.

    Seeds are paired where both arms share initialization and data (`Arm.is_paired_with`).
    """
    one, other = losses[worse], losses[better]
    (one_SB, other_SB), weights_B = shared_blocks(one.at(lengths), other.at(lengths))
    paired = worse.is_paired_with(better) and one.seeds == other.seeds
    nats = difference(one_SB, other_SB, weights_B, seed_spread(outcomes, lengths), paired=paired)
    title = f"{_versus(worse, better)}, {'training’s lengths' if lengths == 'init' else 'best lengths'}"
    return _comparison(key, title, nats, (one_SB, other_SB), weights_B, outcomes, paper)


def compare_gains(
    key: str, arm: Arm, other: Arm | None, losses: Losses, outcomes: Outcomes, paper: float | None = None
) -> Comparison:
    """Return how much an arm gains from longer attention; with another arm, how much more than that one."""
    found, spread = losses[arm], gain_spread(outcomes)
    others = (losses[other].init, losses[other].best) if other else ()
    (init_SB, best_SB, *others_SB), weights_B = shared_blocks(found.init, found.best, *others)
    gain_SB = found.gain_SB(init_SB, best_SB)
    gain = "gain of longer attention"
    if other is None:
        title = f"{gain}: {arm.title}"
        nats = mean_over_seeds(gain_SB, weights_B, spread)
    else:
        nats = difference(gain_SB, losses[other].gain_SB(*others_SB), weights_B, spread, paired=False)
        title = f"{gain}: {_versus(arm, other)}"
    return _comparison(key, title, nats, (init_SB, best_SB), weights_B, outcomes, paper)


def _comparison(
    key: str,
    title: str,
    nats: Interval,
    sides_SB: tuple[Array, Array],
    weights_B: Array,
    outcomes: Outcomes,
    paper: float | None,
) -> Comparison:
    """Comparison in the unit of the report; `sides_SB` are losses: the worse side as claimed, then the better one."""
    worse, better = (float(side_SB.mean(axis=0) @ weights_B / weights_B.sum()) for side_SB in sides_SB)
    in_unit = nats.mapped(lambda d: d / math.log(2))
    if outcomes.unit == "ppl":
        in_unit = nats.mapped(lambda d: math.exp(better) * (math.exp(d) - 1))
    return Comparison(key, title, in_unit, nats.mapped(lambda d: 100 * d / worse), paper, int(weights_B.sum()))


def _versus(one: Arm, other: Arm) -> str:
    """Title of a difference with what both arms share in parentheses: `Shaw − relative (recurrence, full loss)`."""
    words, others = one.title.split(", "), other.title.split(", ")
    shared = [word for word in words if word in others]
    sides = [", ".join(word for word in side if word not in shared) for side in (words, others)]
    if not shared or not all(sides):
        return f"{one.title} − {other.title}"
    return f"{' − '.join(sides)} ({', '.join(shared)})"


def _chose_longer(selected: Mapping[str, Any]) -> bool:
    init, best = selected["init"], selected["best"]
    return (best["attention_length"] or 0) > (init["attention_length"] or 0)


def _by_arm(outcomes: Outcomes, value: Any) -> list[list[float]]:
    found: dict[str, list[float]] = {}
    for job in outcomes.jobs:
        if job.command == "evaluate":
            found.setdefault(job.arm, []).append(value(outcomes.result(job, "evaluation.json")["test"]["selected"]))
    return list(found.values())


def _read(path: Path) -> tuple[NDArray[np.int64], Array]:
    """Positions in order of text, and the loss there in nats.

    Raises:
        UserError: the file is missing or damaged.
    """
    try:
        with path.open("rb") as stored, np.load(stored) as file:
            positions, nll = file["positions"].astype(np.int64), file["nll"].astype(np.float64)
    except (OSError, EOFError, ValueError, BadZipFile) as error:
        raise UserError(f"{path}: cannot be read ({error}); delete its folder to measure it again") from error
    order = np.argsort(positions, kind="stable")
    return positions[order], nll[order]


def _intersection(one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
    return one if np.array_equal(one, other) else np.intersect1d(one, other)
