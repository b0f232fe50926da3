"""Differences between arms, on the tokens that both scored and the seeds that both have."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from experiments.arms import Arm
from experiments.engine.jobs import Outcomes
from experiments.sections import Difference
from experiments.tables.evaluations import At, Evaluation, Evaluations, all_evaluations
from experiments.tables.intervals import Array, Interval, Spread, over_blocks, seed_spread
from txl_lightning.errors import UserError

BLOCKS, FEWEST_TOKENS, MOST_TOKENS = 30, 1000, 20_000  # number of blocks, and tokens of one


def row(
    key: str, title: str, unit: str | None, effect: Interval, percent: Interval, paper: float | None = None
) -> Difference:
    """Return a difference with its interval in a unit and in percent."""
    return Difference(
        key, title, unit, *(effect.effect, effect.low, effect.high), *(percent.effect, percent.low, percent.high), paper
    )


def percent_of_loss(worse_ppl: float, better_ppl: float) -> float:
    """Return a difference between perplexities of the paper in percent of the worse loss: 100 · (ln w - ln b) / ln w.

    Losses in nats can be compared in relative terms whatever the tokens are; perplexities of words and bits of bytes
    cannot.
    """
    return 100 * (math.log(worse_ppl) - math.log(better_ppl)) / math.log(worse_ppl)


@dataclass(frozen=True)
class Comparisons:
    """Comparisons of the evaluated arms of a reproduction.

    Args:
        evaluated: evaluations of the arms that are compared.
        outcomes: of the whole reproduction, whose arms the spread between seeds is pooled over.
    """

    evaluated: Evaluations
    outcomes: Outcomes

    @property
    def unit(self) -> str:
        """Unit of losses in the report."""
        return self.outcomes.unit

    def losses(self, key: str, better: Arm, worse: Arm, at: At, paper: float | None = None) -> Difference:
        """Return how much lower the test loss of one arm is than that of another."""
        title = f"{_versus(worse, better)}, {'training’s lengths' if at == 'init' else 'best lengths'}"
        worse_runs, better_runs = self._of_shared_seeds(worse, better)
        if not worse_runs:
            return Difference(key, title, self.unit, paper=paper)
        (worse_SB, better_SB), weights_B = shared_blocks(
            *([run.losses(at) for run in r] for r in (worse_runs, better_runs))
        )
        spread = self._spread(lambda run: float(run.test(at)["nll"]))
        nats = over_blocks(worse_SB - better_SB, weights_B, Spread(2 * spread.variance, spread.freedom))
        found = self._row(key, title, nats, (worse_SB, better_SB), weights_B, paper)
        return replace(found, **course(worse_runs, better_runs))

    def gains(self, key: str, arm: Arm, other: Arm | None = None, paper: float | None = None) -> Difference:
        """Return how much an arm gains from longer attention; with another arm, how much more than that one.

        A run that did not choose a longer attention has a gain of 0.
        """
        arms = (arm,) if other is None else (arm, other)
        title = f"gain of longer attention: {arm.title if other is None else _versus(arm, other)}"
        runs = self._of_shared_seeds(*arms)
        if not runs[0]:
            return Difference(key, title, self.unit, paper=paper)
        files = ([run.losses(at) for run in of_arm] for of_arm in runs for at in ("init", "best"))
        losses_SB, weights_B = shared_blocks(*files)
        longer = [np.array([[run.chose_longer] for run in of_arm]) for of_arm in runs]
        gains_SB = [(losses_SB[2 * i] - losses_SB[2 * i + 1]) * longer[i] for i in range(len(runs))]
        spread = self._spread(
            lambda run: float(run.test("init")["nll"] - run.test("best")["nll"]) if run.chose_longer else 0.0
        )
        spread = Spread(len(arms) * spread.variance, spread.freedom)
        nats = over_blocks(gains_SB[0] - (gains_SB[1] if other else 0.0), weights_B, spread)
        return self._row(key, title, nats, losses_SB[:2], weights_B, paper)

    def _row(
        self, key: str, title: str, nats: Interval, sides_SB: Sequence[Array], weights_B: Array, paper: float | None
    ) -> Difference:
        """Return a difference in the unit of the report, and in percent of the loss of the first side."""
        worse, better = (float(side_SB.mean(axis=0) @ weights_B / weights_B.sum()) for side_SB in sides_SB)
        effect = nats.times(1 / math.log(2))
        if self.unit == "ppl":
            effect = nats.mapped(lambda d: math.exp(better) * (math.exp(d) - 1))
        return row(key, title, self.unit, effect, nats.times(100 / worse), paper)

    def _of_shared_seeds(self, *arms: Arm) -> list[list[Evaluation]]:
        """Evaluations of each arm, of the seeds that all of them have."""
        by_seed = [{run.seed: run for run in self.evaluated.get(arm, ())} for arm in arms]
        seeds = sorted(set.intersection(*(set(runs) for runs in by_seed)))
        return [[runs[seed] for seed in seeds] for runs in by_seed]

    def _spread(self, value: Callable[[Evaluation], float]) -> Spread:
        """Spread of a value between seeds, pooled over the arms of each text of which a run has one that is not 0."""
        texts = defaultdict[str, list[dict[int, float]]](list)
        for runs in all_evaluations(self.outcomes):
            by_seed = {run.seed: value(run) for run in runs}
            if any(by_seed.values()):
                texts[runs[0].found["corpus"]["sha256"]].append(by_seed)
        return seed_spread(list(texts.values()))


def course(worse_runs: Sequence[Evaluation], better_runs: Sequence[Evaluation]) -> dict[str, Any]:
    """Return the fields `tokens` and `course` of a difference, by the validations of both sides during training.

    Sides whose steps differ in tokens are compared at the points of the second, between those of the first.
    """
    pairs = {str(b.seed): (w.validations, b.validations) for w, b in zip(worse_runs, better_runs, strict=True)}
    tokens = sorted(set.intersection(*(set(better) for _, better in pairs.values())))
    by_seed: dict[str, list[float]] = {}
    for seed, (worse, better) in pairs.items():
        above = np.interp(tokens, sorted(worse), [worse[n] for n in sorted(worse)])
        by_seed[seed] = [round(100 * (1 - better[n] / loss), 3) for n, loss in zip(tokens, above.tolist(), strict=True)]
    return {"tokens": tuple(tokens), "course": by_seed} if tokens else {}


def shared_blocks(*groups: Sequence[Path]) -> tuple[list[Array], Array]:
    """Average losses by block of text, over the positions that all files have.

    Neighbouring tokens are of one document, whose losses have something in common, and blocks are taken as if they had
    nothing in common. They are therefore as long as thirty of them allow, from 1,000 to 20,000 tokens, and of equal
    length but for a token; a shorter text is one block.

    Returns:
        For each group the mean losses in nats with shape SB, a row per file; and the number of shared positions of each
        block, with shape B.

    Raises:
        UserError: the files share no position.
    """
    losses = {path: _read(path) for group in groups for path in group}
    shared = reduce(np.intersect1d, (positions for positions, _ in losses.values()))
    if not len(shared):
        names = ", ".join(str(path) for path in losses)
        raise UserError(f"no token of the test split was scored in all of these files: {names}")
    block_len = min(MOST_TOKENS, max(FEWEST_TOKENS, len(shared) // BLOCKS))
    n_blocks = max(1, len(shared) // block_len)
    edges = np.arange(n_blocks + 1) * len(shared) // n_blocks  # no short last block, whose mean would vary most
    first, counts = edges[:-1], np.diff(edges)

    def by_block(path: Path) -> Array:
        positions, nll = losses[path]
        return np.add.reduceat(nll[np.searchsorted(positions, shared)], first) / counts

    return [np.stack([by_block(path) for path in group]) for group in groups], counts.astype(np.float64)


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


def _versus(one: Arm, other: Arm) -> str:
    """Title of a difference with what both arms share in parentheses: `Shaw − relative (recurrence, full loss)`."""
    words, others = one.title.split(", "), other.title.split(", ")
    shared = [word for word in words if word in others]
    sides = [", ".join(word for word in side if word not in shared) for side in (words, others)]
    if not shared or not all(sides):
        return f"{one.title} − {other.title}"
    return f"{' − '.join(sides)} ({', '.join(shared)})"
