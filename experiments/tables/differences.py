"""Differences between arms, on the tokens that both scored and the seeds that both have."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from experiments.arms import Arm
from experiments.engine.jobs import Outcomes
from experiments.sections import Difference
from experiments.tables.evaluations import INIT, At, Evaluation, Evaluations, all_evaluations
from experiments.tables.intervals import Array, Interval, Spread, over_blocks, seed_spread
from txl_lightning.errors import UserError

BLOCKS = 30
FEWEST_TOKENS = 1000  # in a block
MOST_TOKENS = 20_000
Term: TypeAlias = tuple[int, Arm, At]
"""Sign of a loss in a difference, its arm, and its attention length."""


def with_effect(empty: Difference, effect: Interval, percent: Interval) -> Difference:
    """Return a difference with its effect and interval, in its unit and in percent."""
    return replace(
        empty,
        effect=effect.effect,
        low=effect.low,
        high=effect.high,
        percent=percent.effect,
        percent_low=percent.low,
        percent_high=percent.high,
    )


def percent_of_loss(worse_ppl: float, better_ppl: float) -> float:
    """Return a difference between the paper's perplexities in percent of the worse loss: 100 · (ln w - ln b) / ln w.

    Losses in nats can be compared in relative terms whatever the tokens are; word perplexities and byte-level bits
    cannot.
    """
    return 100 * (1 - math.log(better_ppl) / math.log(worse_ppl))


@dataclass(frozen=True)
class Comparisons:
    """Comparisons between a reproduction's evaluated arms.

    Args:
        evaluated: evaluations by arm.
        outcomes: results from the whole reproduction; the spread between seeds is pooled over its arms.
    """

    evaluated: Evaluations
    outcomes: Outcomes

    def losses(
        self, key: str, better: Arm, worse: Arm, at: At, paper: float | None = None
    ) -> Difference:
        """Return how much lower one arm's test loss is than another's."""
        lengths = INIT if at == "init" else "best lengths"
        empty = Difference(
            key, f"{_versus(worse, better)}, {lengths}", self.outcomes.unit, paper=paper
        )
        spread = self._spread(lambda run: run.test(at)["nll"], n_sides=2)
        compared = self._compare(
            empty,
            [(1, worse, at), (-1, better, at)],
            spread,
        )
        if compared.effect is None:
            return empty
        worse_runs, better_runs = self._of_shared_seeds(worse, better)
        tokens, course = course_of(worse_runs, better_runs)
        return replace(compared, tokens=tokens, course=course)

    def gain(
        self, key: str, arm: Arm, other: Arm | None = None, paper: float | None = None
    ) -> Difference:
        """Return how much an arm gains from longer attention; with another arm, how much more than that one.

        A run that did not choose a longer attention gains nothing.
        """
        title = arm.title
        terms: list[Term] = [(1, arm, "init"), (-1, arm, "longer")]
        if other is not None:
            title = _versus(arm, other)
            terms += [(-1, other, "init"), (1, other, "longer")]
        title = f"gain of longer attention: {title}"
        empty = Difference(key, title, self.outcomes.unit, paper=paper)
        return self._compare(
            empty,
            terms,
            self._spread(_gain, n_sides=len(terms) // 2),
        )

    def _compare(self, empty: Difference, terms: Sequence[Term], spread: Spread) -> Difference:
        """Return a sum over signed losses with its interval; it is empty while an arm has no result."""
        runs = self._of_shared_seeds(*(arm for _, arm, _ in terms))
        if not runs[0]:
            return empty
        files = []
        for (_, _, at), of_arm in zip(
            terms,
            runs,
            strict=True,
        ):
            files.append([run.losses(at) for run in of_arm])
        losses_SB, weights_B = shared_blocks(*files)
        difference_SB = np.zeros_like(losses_SB[0])
        for (sign, _, _), term_SB in zip(
            terms,
            losses_SB,
            strict=True,
        ):
            difference_SB += sign * term_SB
        nats = over_blocks(difference_SB, weights_B, spread)
        return self._with_units(
            empty,
            nats,
            losses_SB[0],
            losses_SB[1],
            weights_B,
        )

    def _with_units(
        self, empty: Difference, nats: Interval, worse_SB: Array, better_SB: Array, weights_B: Array
    ) -> Difference:
        """Return a difference in the report's unit, and in percent of the worse loss."""
        shares_B = weights_B / weights_B.sum()
        worse = float(worse_SB.mean(axis=0) @ shares_B)
        better = float(better_SB.mean(axis=0) @ shares_B)
        effect = nats.times(1 / math.log(2))
        if self.outcomes.unit == "ppl":
            effect = nats.mapped(lambda d: math.exp(better) * (math.exp(d) - 1))
        return with_effect(empty, effect, nats.times(100 / worse))

    def _of_shared_seeds(self, *arms: Arm) -> list[list[Evaluation]]:
        """Return each arm's evaluations for the seeds that all arms have."""
        by_seed = [{run.seed: run for run in self.evaluated.get(arm, ())} for arm in arms]
        seeds = sorted(set.intersection(*(set(runs) for runs in by_seed)))
        return [[runs[seed] for seed in seeds] for runs in by_seed]

    def _spread(self, value: Callable[[Evaluation], float], n_sides: int) -> Spread:
        """Return the spread between seeds for a difference with `n_sides` values.

        It is pooled over each text's arms; an arm whose values are all 0 says nothing.
        """
        texts: dict[str, list[dict[int, float]]] = {}
        for runs in all_evaluations(self.outcomes):
            by_seed = {run.seed: float(value(run)) for run in runs}
            if any(by_seed.values()):
                texts.setdefault(runs[0].content["corpus"]["sha256"], []).append(by_seed)
        spread = seed_spread(list(texts.values()))
        return Spread(n_sides * spread.variance, spread.freedom)


def _gain(run: Evaluation) -> float:
    return float(run.test("init")["nll"] - run.test("longer")["nll"])


def course_of(
    worse_runs: Sequence[Evaluation], better_runs: Sequence[Evaluation]
) -> tuple[list[int], dict[str, list[float]]]:
    """Return training tokens and, by seed, the effect in percent there, at both sides' validations.

    Sides whose steps differ in tokens are compared at the second's points, between the first's.
    """
    better_losses = {str(run.seed): run.validations() for run in better_runs}
    tokens = sorted(set.intersection(*(set(losses) for losses in better_losses.values())))
    course = {}
    for run in worse_runs:
        worse = sorted(run.validations().items())
        points = [n for n, _ in worse]
        losses = [loss for _, loss in worse]
        seed = str(run.seed)
        effects = []
        for n in tokens:
            share = better_losses[seed][n] / float(
                np.interp(
                    n,
                    points,
                    losses,
                )
            )
            effects.append(round(100 * (1 - share), 3))
        course[seed] = effects
    return tokens, course


def shared_blocks(*groups: Sequence[Path]) -> tuple[list[Array], Array]:
    """Average losses by text block, over the positions that all files have.

    Neighbouring tokens belong to one document, so their losses are correlated, but blocks are treated as independent.
    Blocks are therefore as long as possible while there are thirty, from 1,000 to 20,000 tokens, and equally long but
    for a token; a shorter text is one block.

    Returns:
        For each group the mean losses in nats with shape SB, a row per file; and the number of shared positions in each
        block, with shape B.

    Raises:
        UserError: the files share no position.
    """
    losses = {path: _read(path) for group in groups for path in group}
    shared = reduce(np.intersect1d, (positions for positions, _ in losses.values()))
    if not len(shared):
        names = ", ".join(map(str, losses))
        raise UserError(f"no token of the test split was scored in all of these files: {names}")
    block_len = max(FEWEST_TOKENS, len(shared) // BLOCKS)
    block_len = min(MOST_TOKENS, block_len)
    n_blocks = max(1, len(shared) // block_len)
    # No short last block: its mean would vary most.
    edges = np.arange(n_blocks + 1) * len(shared) // n_blocks
    counts = np.diff(edges)

    def by_block(path: Path) -> Array:
        positions, nll = losses[path]
        of_shared = nll[np.searchsorted(positions, shared)]
        return np.add.reduceat(of_shared, edges[:-1]) / counts

    means = [np.stack([by_block(path) for path in group]) for group in groups]
    return means, counts.astype(np.float64)


def _read(path: Path) -> tuple[NDArray[np.int64], Array]:
    """Return positions in text order, and the loss there in nats."""
    with np.load(path) as file:
        positions = file["positions"].astype(np.int64)
        nll = file["nll"].astype(np.float64)
    order = np.argsort(positions, kind="stable")
    return positions[order], nll[order]


def _versus(one: Arm, other: Arm) -> str:
    """Return a title with what both arms share in parentheses: `Shaw − relative (recurrence, full loss)`."""
    words = one.title.split(", ")
    other_words = other.title.split(", ")
    shared = [word for word in words if word in other_words]
    side = ", ".join(word for word in words if word not in shared)
    other_side = ", ".join(word for word in other_words if word not in shared)
    if not shared or not side or not other_side:
        return f"{one.title} − {other.title}"
    return f"{side} − {other_side} ({', '.join(shared)})"
