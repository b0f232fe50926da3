"""Differences that claims are judged by: between arms on the tokens that both scored, or between other measurements.

A difference is positive where it supports the claim. The key of a comparison is `CLAIM/PART`; comparisons that no claim
needs have a key of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
)
from experiments.tables.length_sweep import At, Evaluation, Evaluations, read_evaluation
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


def compare(
    key: str, better: Arm, worse: Arm, at: At, found: Evaluations, outcomes: Outcomes, paper: float | None = None
) -> Comparison:
    """Return how much lower the test loss of one arm is than that of another, on the tokens that all runs scored.

    Seeds are paired where both arms share initialization and data (`Arm.is_paired_with`). The variance between seeds
    is pooled over all arms of the reproduction, of the loss of all scored tokens, in nats².
    """
    one, other = found[worse], found[better]
    (one_SB, other_SB), weights_B = shared_blocks(*([run.losses(at) for run in side] for side in (one, other)))
    paired = worse.is_paired_with(better) and [run.seed for run in one] == [run.seed for run in other]
    spread = pooled_spread(_by_arm(outcomes, lambda run: float(run.test(at)["nll"])))
    nats = difference(one_SB, other_SB, weights_B, spread, paired=paired)
    title = f"{_versus(worse, better)}, {'training’s lengths' if at == 'init' else 'best lengths'}"
    return _comparison(key, title, nats, (one_SB, other_SB), weights_B, outcomes, paper)


def compare_gains(
    key: str, arm: Arm, other: Arm | None, found: Evaluations, outcomes: Outcomes, paper: float | None = None
) -> Comparison:
    """Return how much an arm gains from longer attention; with another arm, how much more than that one.

    A run that did not choose a longer attention has a gain of 0. The variance between seeds is pooled over the arms
    of which a run chose one.
    """

    def gain(run: Evaluation) -> float:
        return float(run.test("init")["nll"] - run.test("best")["nll"]) if run.chose_longer else 0.0

    spread = pooled_spread([gains for gains in _by_arm(outcomes, gain) if any(gains)])
    sides = [found[arm]] if other is None else [found[arm], found[other]]
    files = [[run.losses(at) for run in side] for side in sides for at in ("init", "best")]
    (init_SB, best_SB, *others_SB), weights_B = shared_blocks(*files)
    gain_SB = _gains(found[arm], init_SB, best_SB)
    title = "gain of longer attention"
    if other is None:
        title = f"{title}: {arm.title}"
        nats = mean_over_seeds(gain_SB, weights_B, spread)
    else:
        nats = difference(gain_SB, _gains(found[other], *others_SB), weights_B, spread, paired=False)
        title = f"{title}: {_versus(arm, other)}"
    return _comparison(key, title, nats, (init_SB, best_SB), weights_B, outcomes, paper)


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
    in_unit = nats.times(1 / math.log(2))
    if outcomes.unit == "ppl":
        in_unit = nats.mapped(lambda d: math.exp(better) * (math.exp(d) - 1))
    return Comparison(key, title, in_unit, nats.times(100 / worse), paper, int(weights_B.sum()))


def _versus(one: Arm, other: Arm) -> str:
    """Title of a difference with what both arms share in parentheses: `Shaw − relative (recurrence, full loss)`."""
    words, others = one.title.split(", "), other.title.split(", ")
    shared = [word for word in words if word in others]
    sides = [", ".join(word for word in side if word not in shared) for side in (words, others)]
    if not shared or not all(sides):
        return f"{one.title} − {other.title}"
    return f"{' − '.join(sides)} ({', '.join(shared)})"


def _by_arm(outcomes: Outcomes, value: Callable[[Evaluation], float]) -> list[list[float]]:
    """Return a value of every finished evaluation of the reproduction, a list for each arm."""
    found: dict[str, list[float]] = {}
    for job in outcomes.jobs:
        if job.command == "evaluate" and (run := read_evaluation(job, outcomes)):
            found.setdefault(job.arm, []).append(value(run))
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
