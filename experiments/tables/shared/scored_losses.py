"""Losses of test tokens, by run and block of text, from `txl evaluate losses=true`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from experiments.engine.jobs import Job
from experiments.engine.outcomes import Outcomes
from experiments.engine.setup import Setup
from experiments.tables.arms import Arm
from experiments.tables.shared.comparisons import Comparison
from experiments.tables.shared.intervals import Array, Interval, SeedSpread, difference, mean_over_seeds, pooled_spread
from experiments.tables.shared.length_sweep import sweep_job

BLOCK = 1000  # tokens
At = Literal["init", "best"]


@dataclass(frozen=True)
class BlockLosses:
    """Losses of one arm's runs on the test split, in nats: a row per seed, a column per block of 1,000 tokens.

    Args:
        seeds: of the rows.
        init_SB: mean loss of each block at training's lengths.
        best_SB: the same at the attention length chosen on validation.
        longer_S: whether a run chose a longer attention than training's.
        weights_B: scored tokens of each block.
    """

    seeds: tuple[int, ...]
    init_SB: Array
    best_SB: Array
    longer_S: NDArray[np.bool_]
    weights_B: Array

    def at(self, lengths: At) -> Array:
        """Return the losses at training's lengths (`init`) or at the chosen length (`best`)."""
        return self.init_SB if lengths == "init" else self.best_SB

    @property
    def gain_SB(self) -> Array:
        """Loss at training's lengths minus loss at the chosen length; 0 for a run that chose no longer one."""
        gains: Array = (self.init_SB - self.best_SB) * self.longer_S[:, None]
        return gains


Losses = Mapping[Arm, BlockLosses]


def block_losses(runs: Mapping[Arm, Sequence[Job]], setup: Setup, outcomes: Outcomes) -> dict[Arm, BlockLosses]:
    """Read the losses of all runs at the positions that every one of them scored."""
    files: dict[Arm, list[tuple[Path, Path, bool]]] = {}
    for arm, arm_runs in runs.items():
        for run in arm_runs:
            job = sweep_job(arm, run, setup)
            selected = outcomes.result(job, "evaluation.json")["test"]["selected"]
            init, best = (selected[name] for name in ("init", "best"))
            longer = (best["attention_length"] or 0) > (init["attention_length"] or 0)
            folder = outcomes.runs / job.name
            files.setdefault(arm, []).append((folder / init["losses"], folder / best["losses"], longer))
    every = dict.fromkeys(path for paths in files.values() for init, best, _ in paths for path in (init, best))
    common = reduce(_intersection, (_read(path)[0] for path in every))
    _, first, counts = np.unique(common // BLOCK, return_index=True, return_counts=True)

    def by_block(path: Path) -> Array:
        positions, nll = _read(path)
        chosen = nll if len(positions) == len(common) else nll[np.searchsorted(positions, common)]
        means: Array = np.add.reduceat(chosen, first) / counts
        return means

    return {
        arm: BlockLosses(
            tuple(run.seed or 0 for run in runs[arm]),
            np.stack([by_block(init) for init, _, _ in paths]),
            np.stack([by_block(best) for _, best, _ in paths]),
            np.array([longer for *_, longer in paths]),
            counts.astype(np.float64),
        )
        for arm, paths in files.items()
    }


def seed_spread(outcomes: Outcomes, lengths: At) -> SeedSpread:
    """Pool the variance between seeds over all arms of the reproduction with two seeds or more, in nats²."""
    return pooled_spread(_by_arm(outcomes, lambda selected: float(selected[lengths]["nll"])))


def gain_spread(outcomes: Outcomes) -> SeedSpread:
    """Pool the variance of the gain of longer attention likewise, over the arms of which a run chose a longer one."""

    def gain(selected: dict[str, Any]) -> float:
        init, best = selected["init"], selected["best"]
        longer = (best["attention_length"] or 0) > (init["attention_length"] or 0)
        return float(init["nll"] - best["nll"]) if longer else 0.0

    return pooled_spread([gains for gains in _by_arm(outcomes, gain) if any(gains)])


def compare(
    key: str, better: Arm, worse: Arm, lengths: At, losses: Losses, outcomes: Outcomes, paper: float | None = None
) -> Comparison:
    """Return how much lower the loss of one arm is than that of another.

    Seeds are paired where both arms share initialisation and data: recurrence on and off, all else equal.
    """
    one, other = losses[worse], losses[better]
    paired = worse.differs_in_recurrence_only(better) and one.seeds == other.seeds
    nats = difference(one.at(lengths), other.at(lengths), one.weights_B, seed_spread(outcomes, lengths), paired=paired)
    title = f"{worse.title} − {better.title}, {'at training’s lengths' if lengths == 'init' else 'at the best length'}"
    return _comparison(key, title, nats, _mean(one, lengths), _mean(other, lengths), outcomes, paper)


def compare_gains(
    key: str, arm: Arm, other: Arm | None, losses: Losses, outcomes: Outcomes, paper: float | None = None
) -> Comparison:
    """Return how much an arm gains from longer attention; with another arm, how much more than that one."""
    found, spread = losses[arm], gain_spread(outcomes)
    nats = mean_over_seeds(found.gain_SB, found.weights_B, spread)
    title = f"gain of longer attention: {arm.title}"
    if other is not None:
        nats = difference(found.gain_SB, losses[other].gain_SB, found.weights_B, spread, paired=False)
        title = f"{title} − {other.title}"
    return _comparison(key, title, nats, _mean(found, "init"), _mean(found, "best"), outcomes, paper)


def _comparison(
    key: str, title: str, nats: Interval, worse: float, better: float, outcomes: Outcomes, paper: float | None
) -> Comparison:
    in_unit = nats.mapped(lambda d: d / math.log(2))
    if outcomes.unit == "ppl":
        in_unit = nats.mapped(lambda d: math.exp(better) * (math.exp(d) - 1))
    return Comparison(key, title, in_unit, nats.mapped(lambda d: 100 * d / worse), paper)


def _mean(losses: BlockLosses, lengths: At) -> float:
    return float(losses.at(lengths).mean(axis=0) @ losses.weights_B / losses.weights_B.sum())


def _by_arm(outcomes: Outcomes, value: Any) -> list[list[float]]:
    found: dict[str, list[float]] = {}
    for job in outcomes.jobs:
        if job.command == "evaluate":
            found.setdefault(job.arm, []).append(value(outcomes.result(job, "evaluation.json")["test"]["selected"]))
    return list(found.values())


def _read(path: Path) -> tuple[NDArray[np.int64], Array]:
    """Positions in order of text, and the loss there in nats."""
    with np.load(path) as file:
        positions, nll = file["positions"].astype(np.int64), file["nll"].astype(np.float64)
    order = np.argsort(positions, kind="stable")
    return positions[order], nll[order]


def _intersection(one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
    return one if np.array_equal(one, other) else np.intersect1d(one, other)
