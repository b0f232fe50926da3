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
from experiments.tables.intervals import Array, Interval, SeedSpread, difference, pooled_spread
from txl_lightning.files import write_text

RUNS, SEEDS = 0.003, ((3, 3), (2, 3), (2, 2))  # standard deviation between the seeds of an arm, nats; seeds compared
OTHERS, FEW = 10, 2  # other arms of the reproduction, and the seeds of each
BLOCKS, TEXT = 33, 0.002  # blocks of test text; standard error of a difference by the choice of the text, nats
INTERACTION = 0.005  # standard deviation of a run on a block, beside the run's and the block's own, nats
WIDE, LOSS = 3.0, 1.4  # times the spread of the other arms; nats
REPETITIONS, RESAMPLES = 2000, 400
SPREADS = {"": "equal", "compared": "tripled in one of the two arms", "other": "tripled in one other arm"}
INTRODUCTION = f"""# Intervals and marks in a simulation

`python -m experiments.simulation FILE`: {REPETITIONS:,} differences a row of two equally good arms, among {2 + OTHERS}
arms. Spread between seeds {RUNS} nats, standard error by the choice of the text {TEXT} nats, {BLOCKS} blocks.
Correlation: of two runs with one seed. Intervals of 95 % by three rules for the spread between seeds: pairs of seeds,
the variance pooled over all arms, or Welch's with the variances of the two arms.
"""
MARKS = f"## How often each mark comes\n\nPooled variance; paper and truth in percent of a loss of {LOSS} nats.\n"
Sides = tuple[Array, Array, list[list[float]]]


def paired(worse_SB: Array, better_SB: Array, others: list[list[float]]) -> tuple[Array, Array, SeedSpread]:
    """Compare the seeds that both arms have, in pairs, with S - 1 degrees of freedom."""
    S = min(len(worse_SB), len(better_SB))
    by_pair_S = (worse_SB[:S] - better_SB[:S]).mean(axis=1)
    return worse_SB[:S], better_SB[:S], SeedSpread(float(by_pair_S.var(ddof=1)) / 2, S - 1)


def pooled(worse_SB: Array, better_SB: Array, others: list[list[float]]) -> tuple[Array, Array, SeedSpread]:
    """Pool the variance between seeds over all arms of the reproduction, with Σ (S_arm - 1) degrees of freedom."""
    return (
        worse_SB,
        better_SB,
        pooled_spread([*(side.mean(axis=1).tolist() for side in (worse_SB, better_SB)), *others]),
    )


def welch(worse_SB: Array, better_SB: Array, others: list[list[float]]) -> tuple[Array, Array, SeedSpread]:
    """Take each arm's own variance, with Welch's degrees of freedom."""
    sides = [(float(side.mean(axis=1).var(ddof=1)) / len(side), len(side)) for side in (worse_SB, better_SB)]
    variance = sum(own for own, _ in sides)
    freedom = variance**2 / sum(own**2 / (S - 1) for own, S in sides)
    return worse_SB, better_SB, SeedSpread(variance / sum(1 / S for _, S in sides), round(freedom, 1))


RULES: dict[str, Callable[..., tuple[Array, Array, SeedSpread]]] = {"paired": paired, "pooled": pooled, "Welch": welch}


def draws(seeds: tuple[int, int], correlation: float, wide: str, repetitions: int, seed: int) -> Iterator[Sides]:
    """Draw losses by seed and block of two equally good arms, and the other arms' mean losses; `wide`: of `SPREADS`."""
    random = np.random.default_rng(seed)
    own = (RUNS**2 - INTERACTION**2 / BLOCKS) ** 0.5  # with the interaction, a run's mean varies by RUNS
    for _ in range(repetitions):
        first, second = random.normal(0, own, (2, max(seeds)))
        second = correlation * first + (1 - correlation**2) ** 0.5 * second
        first *= WIDE if wide == "compared" else 1.0
        text_B = random.normal(0, TEXT * BLOCKS**0.5, BLOCKS)
        worse_SB = first[: seeds[0], None] + text_B + random.normal(0, INTERACTION, (seeds[0], BLOCKS))
        better_SB = second[: seeds[1], None] + random.normal(0, INTERACTION, (seeds[1], BLOCKS))
        others = random.normal(0, RUNS, (OTHERS, FEW))
        others[0] *= WIDE if wide == "other" else 1.0
        yield worse_SB, better_SB, others.tolist()


def intervals(rule: str, drawn: Iterator[Sides]) -> list[Interval]:
    """Return the interval that a rule gives for each draw; the truth is 0."""
    return [
        difference(worse_SB, better_SB, np.ones(BLOCKS), spread, seed=i, resamples=RESAMPLES)
        for i, (worse_SB, better_SB, spread) in enumerate(RULES[rule](*draw) for draw in drawn)
    ]


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
    lines = [INTRODUCTION, f"| seeds | correlation | spread | {names} |", f"|{' --- |' * 9}"]
    cases = [*product((0.0, 0.5, -0.5), [""]), *product([0.0], ["compared", "other"])]
    for seeds, (correlation, wide) in product(SEEDS, cases):
        case = [f"{seeds[0]} and {seeds[1]}", f"{correlation:g}", SPREADS[wide]]
        for rule in RULES:
            covered, half = coverage(intervals(rule, draws(seeds, correlation, wide, REPETITIONS, 1)))
            case += [f"{covered:.1f}", f"{half:.4f}"]
        lines.append(f"| {' | '.join(case)} |")
    lines += ["", MARKS, "| seeds | paper | truth | holds | does not hold | within noise |", f"|{' --- |' * 6}"]
    for seeds in SEEDS:
        found = intervals("pooled", draws(seeds, 0.0, "", REPETITIONS, 2))
        for paper, share in product((1.0, 0.3), (0.0, 0.5, 1.0)):
            counts = marks(found, share * paper, paper)
            shares = (f"{100 * counts[mark] / len(found):.1f} %" for mark in ("holds", "does not hold", "within noise"))
            lines.append(f"| {seeds[0]} and {seeds[1]} | {paper} % | {share * paper:g} % | {' | '.join(shares)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    write_text(Path(sys.argv[1]), report())
