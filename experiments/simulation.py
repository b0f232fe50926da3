"""Simulation behind the intervals: which rule for the spread between seeds covers the truth, and how often marks come.

`python -m experiments.simulation FILE` writes it as Markdown. Sizes are those of the laptop reproduction.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import numpy as np

from experiments.claims import ClaimPart, mark_of
from experiments.report.sections import Number
from experiments.tables.intervals import (
    Array,
    Interval,
    SeedSpread,
    difference,
    mean_over_seeds,
    pooled_spread,
    residual_spread,
)
from txl_lightning.files import write_text

RUNS, SEEDS = 0.003, ((3, 3), (2, 3), (2, 2))  # standard deviation of runs of an arm and a seed, nats; seeds compared
READ = 0.02  # standard deviation by the text that a seed reads in training, which moves all its runs alike, nats
OTHERS, FEW = 10, 2  # other arms of the reproduction, and the seeds of each
BLOCKS, TEXT = 33, 0.002  # blocks of test text; standard error of a difference by the choice of the text, nats
INTERACTION = 0.005  # standard deviation of a run on a block, beside the run's and the block's own, nats
WIDE, LOSS = 3.0, 1.4  # times the spread of the other arms; nats
REPETITIONS, RESAMPLES = 1000, 400
SPREADS = {"": "equal", "compared": "tripled in one of the two arms", "other": "tripled in one other arm"}
INTRODUCTION = f"""# Intervals and marks in a simulation

`python -m experiments.simulation FILE`: {REPETITIONS:,} differences a row of two equally good arms, among {2 + OTHERS}
arms. A run varies by {RUNS} nats, and all runs of a seed together by the standard deviation in the second column: they
read the same part of the text. Standard error by the choice of the test text {TEXT} nats, {BLOCKS} blocks. Intervals of
95 % by four rules: residual, the variance of what arm and seed leave unexplained, over all arms; paired, that of the
pairs of equal seeds alone; pooled, the variance between seeds, over all arms; Welch's, with the variances of both arms.
"""
MARKS = f"## How often each mark comes\n\nBy the first rule; paper and truth in percent of a loss of {LOSS} nats.\n"
Side = dict[int, float]
Rule = Callable[[Array, Array, list[Side], int], Interval]


def by_seed(side_SB: Array) -> Side:
    """Return the mean loss of each seed."""
    return dict(enumerate(side_SB.mean(axis=1).tolist()))


def residual(worse_SB: Array, better_SB: Array, others: list[Side], seed: int) -> Interval:
    """Compare the seeds that both arms have, with the residual variance of all arms: the rule of the report."""
    S = min(len(worse_SB), len(better_SB))
    spread = residual_spread([[by_seed(worse_SB), by_seed(better_SB), *others]])
    return difference(worse_SB[:S], better_SB[:S], np.ones(BLOCKS), spread, seed=seed, resamples=RESAMPLES)


def paired(worse_SB: Array, better_SB: Array, others: list[Side], seed: int) -> Interval:
    """Compare the seeds that both arms have, with the variance of their differences."""
    S = min(len(worse_SB), len(better_SB))
    differences_SB = worse_SB[:S] - better_SB[:S]
    spread = SeedSpread(float(differences_SB.mean(axis=1).var(ddof=1)), S - 1)
    return mean_over_seeds(differences_SB, np.ones(BLOCKS), spread, seed, RESAMPLES)


def unpaired(worse_SB: Array, better_SB: Array, spread: SeedSpread, seed: int) -> Interval:
    """Compare the means over all seeds of each arm; `spread` is of their difference."""
    mean_B = worse_SB.mean(axis=0) - better_SB.mean(axis=0)
    return mean_over_seeds(mean_B[None], np.ones(BLOCKS), spread, seed, RESAMPLES)


def pooled(worse_SB: Array, better_SB: Array, others: list[Side], seed: int) -> Interval:
    """Pool the variance between seeds over all arms."""
    spread = pooled_spread([list(side.values()) for side in (by_seed(worse_SB), by_seed(better_SB), *others)])
    share = 1 / len(worse_SB) + 1 / len(better_SB)
    return unpaired(worse_SB, better_SB, SeedSpread(spread.variance * share, spread.freedom), seed)


def welch(worse_SB: Array, better_SB: Array, others: list[Side], seed: int) -> Interval:
    """Take each arm's own variance, with Welch's degrees of freedom."""
    sides = [(float(side.mean(axis=1).var(ddof=1)) / len(side), len(side)) for side in (worse_SB, better_SB)]
    variance = sum(own for own, _ in sides)
    freedom = variance**2 / sum(own**2 / (S - 1) for own, S in sides)
    return unpaired(worse_SB, better_SB, SeedSpread(variance, round(freedom, 1)), seed)


RULES: dict[str, Rule] = {"residual": residual, "paired": paired, "pooled": pooled, "Welch": welch}
Sides = tuple[Array, Array, list[Side]]


def draws(seeds: tuple[int, int], read: float, wide: str, repetitions: int, seed: int) -> Iterator[Sides]:
    """Draw losses by seed and block of two equally good arms, and the other arms' losses; `wide`: of `SPREADS`."""
    random = np.random.default_rng(seed)
    own = (RUNS**2 - INTERACTION**2 / BLOCKS) ** 0.5  # with the interaction, a run's mean varies by RUNS
    for _ in range(repetitions):
        read_S = random.normal(0, read, max(seeds))
        first, second = random.normal(0, own, (2, max(seeds)))
        first = read_S + first * (WIDE if wide == "compared" else 1.0)
        text_B = random.normal(0, TEXT * BLOCKS**0.5, BLOCKS)
        worse_SB = first[: seeds[0], None] + text_B + random.normal(0, INTERACTION, (seeds[0], BLOCKS))
        better_SB = (read_S + second)[: seeds[1], None] + random.normal(0, INTERACTION, (seeds[1], BLOCKS))
        others = random.normal(0, RUNS, (OTHERS, FEW))
        others[0] *= WIDE if wide == "other" else 1.0
        yield worse_SB, better_SB, [dict(enumerate(row.tolist())) for row in others + read_S[:FEW]]


def intervals(rule: str, drawn: Iterator[Sides]) -> list[Interval]:
    """Return the interval that a rule gives for each draw; the truth is 0."""
    return [RULES[rule](*sides, i) for i, sides in enumerate(drawn)]


def coverage(found: list[Interval]) -> tuple[float, float]:
    """Return how many intervals have the truth, in percent, and the mean of half their widths in nats."""
    ends = np.array([(one.low, one.high) for one in found])
    return 100 * float(((ends[:, 0] <= 0) & (ends[:, 1] >= 0)).mean()), float(np.diff(ends).mean()) / 2


def marks(found: list[Interval], truth: float, paper: float) -> Counter[str | None]:
    """Count the marks of intervals around a truth; truth and paper's effect in percent of the loss."""
    percents = [interval.mapped(lambda nats: 100 * nats / LOSS + truth) for interval in found]
    cells = ((Number(one.effect, 4, low=one.low, high=one.high) for one in (p.times(LOSS / 100), p)) for p in percents)
    return Counter(mark_of(ClaimPart("", "", nats, percent, paper, "nats")) for nats, percent in cells)


def report() -> str:
    """Return all results as Markdown."""
    names = " | ".join(f"{rule}: {what}" for rule in RULES for what in ("covered, %", "half width, nats"))
    lines = [INTRODUCTION, f"| seeds | by what a seed reads | other spread | {names} |", f"|{' --- |' * 11}"]
    cases = [(0.0, ""), *product([READ], SPREADS)]
    for seeds, (read, wide) in product(SEEDS, cases):
        case = [f"{seeds[0]} and {seeds[1]}", f"{read:g}", SPREADS[wide]]
        for rule in RULES:
            covered, half = coverage(intervals(rule, draws(seeds, read, wide, REPETITIONS, 1)))
            case += [f"{covered:.1f}", f"{half:.4f}"]
        lines.append(f"| {' | '.join(case)} |")
    lines += ["", MARKS, "| seeds | paper | truth | holds | does not hold | within noise |", f"|{' --- |' * 6}"]
    for seeds in SEEDS:
        found = intervals("residual", draws(seeds, READ, "", REPETITIONS, 2))
        for paper, share in product((1.0, 0.3), (0.0, 0.5, 1.0)):
            counts = marks(found, share * paper, paper)
            shares = (f"{100 * counts[mark] / len(found):.1f} %" for mark in ("holds", "does not hold", "within noise"))
            lines.append(f"| {seeds[0]} and {seeds[1]} | {paper} % | {share * paper:g} % | {' | '.join(shares)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    write_text(Path(sys.argv[1]), report())
