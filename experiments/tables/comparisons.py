"""Differences that claims are judged by: between arms on the tokens that both scored, or between other measurements.

A difference is positive where it supports the claim. The key of a comparison is `CLAIM/PART`; comparisons that no claim
needs have a key of their own.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from experiments.engine.jobs import Outcomes
from experiments.report.sections import Cell, Column, Number, Table, Text, cell, label, ours, paper
from experiments.tables.arms import Arm
from experiments.tables.intervals import (
    MANY_BLOCKS,
    Array,
    Interval,
    difference,
    mean_over_seeds,
    pooled_spread,
    residual_spread,
)
from experiments.tables.length_sweep import At, Evaluation, Evaluations, evaluation
from txl_lightning.errors import UserError

FEWEST_TOKENS, MOST_TOKENS = 1000, 20_000  # of a block


@dataclass(frozen=True)
class Comparison:
    """One difference with its 95 % interval.

    Args:
        key: of its row; begins with the claim's id and a slash.
        title: names both sides.
        difference: in the table's unit; positive supports the claim. None while a side has no finished run.
        relative: the same in percent of one side: for losses of the one that should be worse.
        paper: the paper's difference in percent; None where it has none.
        tokens: that both sides were scored on; None where tokens are not what was measured.
        step: of the grid on which both sides were measured, in the table's unit; None for a continuous measure.
        pending: planned runs of both sides that are not finished.
        untested: why the difference says nothing about its claim, in a sentence; empty where it does.
    """

    key: str
    title: str
    difference: Interval | None
    relative: Interval | None
    paper: float | None = None
    tokens: int | None = None
    step: float | None = None
    pending: int = 0
    untested: str = ""


def comparisons_table(name: str, title: str, unit: str | None, digits: int, found: Sequence[Comparison]) -> Table:
    """Return the table of a section's comparisons; columns that no comparison fills are left out."""
    rest: dict[Column, Callable[[Comparison], Cell]] = {
        ours("tokens", "both sides scored on", "tokens"): lambda one: cell(one.tokens, 0),
        ours("pending", "runs to come"): lambda one: cell(one.pending or None, 0),
        ours("untested", "not tested"): lambda one: Text(one.untested) if one.untested else None,
    }
    return Table.filled(
        f"{name}_differences",
        f"{title.partition(':')[0]}: differences with 95 % intervals",
        {comparison.key: comparison for comparison in found},
        {
            label("arm", "difference of"): lambda one: one.title,
            ours("difference", "difference", unit): lambda one: _cell(one.difference, digits, one.step),
            ours("relative", "relative", "%"): lambda one: _cell(one.relative, 1),
            **{column: value for column, value in rest.items() if any(value(one) for one in found)},
            paper("paper", "relative", "%"): lambda one: cell(one.paper, 1),
        },
    )


def percent_of_loss(worse_ppl: float, better_ppl: float) -> float:
    """Return a difference between perplexities of the paper in percent of the worse loss: 100 · (ln w - ln b) / ln w.

    Losses in nats can be compared in relative terms whatever the tokens are; perplexities of words and bits of bytes
    cannot.
    """
    return 100 * (math.log(worse_ppl) - math.log(better_ppl)) / math.log(worse_ppl)


def planned(arm: Arm, outcomes: Outcomes) -> int:
    """Return the number of runs of an arm that the reproduction evaluates."""
    return sum(job.command == "evaluate" and job.arm == arm.title for job in outcomes.jobs)


def compare(
    key: str, better: Arm, worse: Arm, at: At, found: Evaluations, outcomes: Outcomes, paper: float | None = None
) -> Comparison:
    """Return how much lower the test loss of one arm is than that of another, on the tokens that all runs scored.

    Only seeds that both arms have are compared. The spread is `residual_spread` over all arms of the reproduction, of
    the loss of all scored tokens, in nats².
    """
    title = f"{_versus(worse, better)}, {'training’s lengths' if at == 'init' else 'best lengths'}"
    planned_only = _without_result(key, title, (worse, better), found, outcomes, paper)
    runs = _of_shared_seeds((worse, better), found)
    if not runs[0]:
        return planned_only
    (worse_SB, better_SB), weights_B = shared_blocks(*([run.losses(at) for run in side] for side in runs))
    spread = residual_spread(_by_text(outcomes, lambda run: float(run.test(at)["nll"])))
    nats = difference(worse_SB, better_SB, weights_B, spread)
    return _with_result(planned_only, nats, (worse_SB, better_SB), weights_B, outcomes)


def compare_gains(
    key: str, arm: Arm, other: Arm | None, found: Evaluations, outcomes: Outcomes, paper: float | None = None
) -> Comparison:
    """Return how much an arm gains from longer attention; with another arm, how much more than that one.

    A run that did not choose a longer attention has a gain of 0. The variance between seeds is pooled over the arms
    of which a run chose one.
    """

    def gain(run: Evaluation) -> float:
        return float(run.test("init")["nll"] - run.test("best")["nll"]) if run.chose_longer else 0.0

    arms = (arm,) if other is None else (arm, other)
    title = f"gain of longer attention: {arm.title if other is None else _versus(arm, other)}"
    planned_only = _without_result(key, title, arms, found, outcomes, paper)
    runs = _of_shared_seeds(arms, found)
    if not runs[0]:
        return planned_only
    losses_SB, weights_B = shared_blocks(
        *([run.losses(at) for run in side] for side in runs for at in ("init", "best"))
    )
    gains_SB = [_gains(side, *losses_SB[2 * i : 2 * i + 2]) for i, side in enumerate(runs)]
    gains = [list(by_seed.values()) for text in _by_text(outcomes, gain) for by_seed in text]
    spread = pooled_spread([of_arm for of_arm in gains if any(of_arm)])
    if other is None:
        nats = mean_over_seeds(gains_SB[0], weights_B, spread)
    else:
        nats = difference(gains_SB[0], gains_SB[1], weights_B, spread)
    return _with_result(planned_only, nats, losses_SB[:2], weights_B, outcomes)


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


def _cell(interval: Interval | None, digits: int, step: float | None = None) -> Cell:
    if interval is None:
        return None
    return Number(interval.effect, digits, low=interval.low, high=interval.high, step=step)


def _gains(runs: Sequence[Evaluation], init_SB: Array, best_SB: Array) -> Array:
    """init_SB - best_SB for the runs that chose a longer attention, 0 for the others."""
    gains: Array = (init_SB - best_SB) * np.array([[run.chose_longer] for run in runs])
    return gains


def _without_result(
    key: str, title: str, arms: Sequence[Arm], found: Evaluations, outcomes: Outcomes, paper: float | None
) -> Comparison:
    """Comparison that has no difference yet, with the number of runs to come."""
    pending = sum(max(0, planned(arm, outcomes) - len(found.get(arm, ()))) for arm in arms)
    return Comparison(key, title, None, None, paper, pending=pending)


def _with_result(
    planned_only: Comparison, nats: Interval, sides_SB: Sequence[Array], weights_B: Array, outcomes: Outcomes
) -> Comparison:
    """Comparison in the unit of the report; `sides_SB` are losses: the worse side as claimed, then the better one."""
    worse, better = (float(side_SB.mean(axis=0) @ weights_B / weights_B.sum()) for side_SB in sides_SB)
    in_unit = nats.times(1 / math.log(2))
    if outcomes.unit == "ppl":
        in_unit = nats.mapped(lambda d: math.exp(better) * (math.exp(d) - 1))
    relative, tokens = nats.times(100 / worse), int(weights_B.sum())
    return replace(planned_only, difference=in_unit, relative=relative, tokens=tokens)


def _versus(one: Arm, other: Arm) -> str:
    """Title of a difference with what both arms share in parentheses: `Shaw − relative (recurrence, full loss)`."""
    words, others = one.title.split(", "), other.title.split(", ")
    shared = [word for word in words if word in others]
    sides = [", ".join(word for word in side if word not in shared) for side in (words, others)]
    if not shared or not all(sides):
        return f"{one.title} − {other.title}"
    return f"{' − '.join(sides)} ({', '.join(shared)})"


def _of_shared_seeds(arms: Sequence[Arm], found: Evaluations) -> list[list[Evaluation]]:
    """Finished evaluations of each arm, of the seeds that all of them have."""
    by_seed = [{run.seed: run for run in found.get(arm, ())} for arm in arms]
    seeds = sorted(set.intersection(*(set(runs) for runs in by_seed)))
    return [[runs[seed] for seed in seeds] for runs in by_seed]


def _by_text(outcomes: Outcomes, value: Callable[[Evaluation], float]) -> list[list[dict[int, float]]]:
    """Return a value of every finished evaluation of the reproduction: by seed, for each arm of each text."""
    seeds, found = (
        {job.name: job.seed or 0 for job in outcomes.jobs},
        defaultdict[str, dict[str, dict[int, float]]](dict),
    )
    for job in outcomes.jobs:
        if "select_on=valid" in job.overrides and outcomes.has(job):
            run = evaluation(job, outcomes, seeds[job.needs[0]])
            found[run.found["corpus"]["sha256"]].setdefault(job.arm, {})[run.seed] = value(run)
    return [list(arms.values()) for arms in found.values()]


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
