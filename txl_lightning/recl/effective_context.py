"""Definition of relative effective context length, RECL (section 4.3 and appendix C), on measured losses.

The models of a group are scored at the same P positions with exactly c tokens of context, for every
c of a grid c_0 < c_1 < …, by default in even steps Δ. Shape letters: I models, C contexts, P
positions in B blocks, S bootstrap samples, R fractions, V values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from txl_lightning.errors import LENGTH, at_most, check, require

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]
INTERVAL = [0.025, 0.975]  # quantiles
BUCKET = 128  # distinct losses


@dataclass(frozen=True)
class EffectiveContext:
    """RECL of one model in its group at one fraction r of hardest positions.

    Args:
        value: RECL in tokens: the first c whose relative gain is below the threshold, at most
            `limit`.
        at_least: whether `value` is only a lower bound: no gain on the grid was below the
            threshold.
        low: lower end of the percentile interval of RECL over resampled blocks of positions.
        high: upper end of that interval.
        high_at_least: whether `high` is only a lower bound.
        guarded: RECL that also ends where the model's own mean loss no longer falls, over all or
            over hard positions.
        guarded_at_least: whether `guarded` is only a lower bound.
        guarded_low: lower end of the interval of `guarded`.
        guarded_high: upper end of that interval.
        guarded_high_at_least: whether `guarded_high` is only a lower bound.
        gains_again: first context beyond `value` to which a step gains the threshold again; None if
            there is none.
        limit: largest context that the model can see; None for no limit.
        relative_gains: g(c, c') for every c of the grid but the last, with c' = c + Δ.
        perplexity_gains: exp f(c, c) - exp f(c, c') at these c (Figure 3).
        perplexities: exp f(c, c) at these c, equal for all models of the group.
    """

    value: int
    at_least: bool
    low: int
    high: int
    high_at_least: bool
    guarded: int
    guarded_at_least: bool
    guarded_low: int
    guarded_high: int
    guarded_high_at_least: bool
    gains_again: int | None
    limit: int | None
    relative_gains: list[float]
    perplexity_gains: list[float]
    perplexities: list[float]


@dataclass(frozen=True)
class ModelSteps:
    """Means of one model at one r at every step of the grid, from c to c', in S samples, in nats.

    Args:
        short_SC: f(c, c), common to all models.
        long_SC: f_i(c, c').
        rises_SC: whether the model's own mean loss does not fall, over all or over hard positions.
    """

    short_SC: Array
    long_SC: Array
    rises_SC: Booleans

    @property
    def gains_SC(self) -> Array:
        """g_i(c, c')."""
        gains: Array = -np.expm1(self.long_SC - self.short_SC)
        return gains


@dataclass(frozen=True)
class Steps:
    """Means of all models at every r: see `ModelSteps`."""

    short_RSC: Array
    long_RSIC: Array
    rises_RSIC: Booleans

    def of(self, r: int, i: int) -> ModelSteps:
        """Return the means of model number i at fraction number r."""
        return ModelSteps(
            short_SC=self.short_RSC[r],
            long_SC=self.long_RSIC[r, :, i],
            rises_SC=self.rises_RSIC[r, :, i],
        )


def relative_effective_context_lengths(
    losses: Mapping[str, Array],
    contexts: Sequence[int],
    fractions: Sequence[float] = (0.1, 0.5, 1.0),
    threshold: float = 0.01,
    limits: Mapping[str, int | None] | None = None,
    bootstrap: int = 1000,
    seed: int = 1,
    blocks: Integers | None = None,
) -> dict[str, dict[float, EffectiveContext]]:
    """Return the RECL of every model of a group, for every fraction r of hardest positions.

        b(c,t)    = min_i l_i(c,t)
        T         = the fraction r of positions with the largest b(c,t), chosen for every c
        f_i(c,c') = mean_{t∈T} min(b(c,t), l_i(c',t))
        g_i(c,c') = (exp f_i(c,c) - exp f_i(c,c')) / exp f_i(c,c)
        RECL_i    = the first c with g_i(c, c + Δ) < threshold
        guarded_i = the first c with g_i(c, c + Δ) < threshold, or at which the mean of l_i(c + Δ, t) - l_i(c, t) over
                    all positions, or over the hard ones of `measured_steps`, is not below 0

    f_i(c,c') keeps b(c,t) where more context is worse, so a step gains wherever single losses fall,
    even if their mean rises: losses that fluctuate with c lengthen RECL, but hardly guarded RECL.
    Compare RECL only within a group, on one grid. RECL does not depend on the order of models and
    positions; its interval depends on the order of blocks.

    Args:
        losses: l_i(c,t) of every model, [C, P], in nats.
        contexts: the grid, ascending; c + Δ is the context after c, with another Δ for each c on an
            uneven grid.
        fractions: r, each in (0, 1].
        threshold: smallest relative gain that counts.
        limits: number of tokens that each model can see; None for no limit. Losses beyond it are
            those at the limit.
        bootstrap: resamples of the blocks for the intervals; 0 for none (low = high = value).
        seed: seed of the resampling.
        blocks: block of each position, [P], from 0. Losses of neighbours are correlated; if
            neighbours are not in one block, intervals are too narrow. None for a block per
            position.

    Raises:
        OptionError: an option, the grid or the losses are not usable.
    """
    check_definition(contexts, fractions, threshold, bootstrap)
    losses_ICP = np.stack([*losses.values()]).astype(np.float64)
    n_contexts, n_positions = losses_ICP.shape[1:]
    is_finite = bool(np.isfinite(losses_ICP).all())
    require(is_finite, "losses", "nan or inf", "must be finite")
    allowed = f"must be {n_contexts}, as the losses have"
    require(len(contexts) == n_contexts, "contexts", list(contexts), allowed)
    if blocks is None:
        blocks = np.arange(n_positions)
    require(len(blocks) == n_positions, "blocks", len(blocks), f"must be {n_positions} numbers")
    block_names, block_P = np.unique(blocks, return_inverse=True)
    n_blocks = len(block_names)
    measured = measured_steps(losses_ICP, fractions, np.ones((1, n_blocks)), block_P)
    sampled = measured
    if bootstrap > 0:
        counts_SB = resampled(n_blocks, bootstrap, seed)
        sampled = measured_steps(losses_ICP, fractions, counts_SB, block_P)
    results: dict[str, dict[float, EffectiveContext]] = {}
    for i, name in enumerate(losses):
        limit = None
        if limits is not None:
            limit = limits.get(name)
        results[name] = {}
        for k, r in enumerate(fractions):
            steps = measured.of(k, i)
            samples = sampled.of(k, i)
            results[name][r] = _effective_context(steps, samples, contexts, threshold, limit)
    return results


def check_definition(
    contexts: Sequence[int], fractions: Sequence[float], threshold: float, bootstrap: int
) -> None:
    """Check the grid and the options of RECL.

    Raises:
        OptionError: naming the option.
    """
    ascending = all(c < longer for c, longer in pairwise([0, *contexts]))
    allowed = "must be at least two, ascending, the first >= 1"
    require(len(contexts) >= 2 and ascending, "contexts", list(contexts), allowed)
    different = 1 <= len(fractions) == len(set(fractions))
    in_range = all(0 < r <= 1 for r in fractions)
    require(
        different and in_range, "fractions", list(fractions), "must be different numbers in (0, 1]"
    )
    require(0 < threshold < 1, "threshold", threshold, "must be in (0, 1)")
    check("bootstrap", bootstrap, LENGTH, at_most("bootstrap"))


def _effective_context(
    measured: ModelSteps,
    sampled: ModelSteps,
    contexts: Sequence[int],
    threshold: float,
    limit: int | None,
) -> EffectiveContext:
    gains_C = measured.gains_SC[0]
    ends_C = gains_C < threshold
    ends_SC = sampled.gains_SC < threshold
    value, at_least = _first_end(ends_C, contexts, limit)
    low, high, high_at_least = _interval(ends_SC, contexts, limit)

    guarded_ends_C = ends_C | measured.rises_SC[0]
    guarded_ends_SC = ends_SC | sampled.rises_SC
    guarded, guarded_at_least = _first_end(guarded_ends_C, contexts, limit)
    guarded_low, guarded_high, guarded_high_at_least = _interval(guarded_ends_SC, contexts, limit)

    gains_again = None
    for context, longer, ends in zip(contexts, contexts[1:], ends_C.tolist(), strict=False):
        if context > value and not ends:
            gains_again = longer
            break
    perplexities_C = np.exp(measured.short_SC[0])
    perplexity_gains_C = perplexities_C - np.exp(measured.long_SC[0])
    return EffectiveContext(
        value=value,
        at_least=at_least,
        low=low,
        high=high,
        high_at_least=high_at_least,
        guarded=guarded,
        guarded_at_least=guarded_at_least,
        guarded_low=guarded_low,
        guarded_high=guarded_high,
        guarded_high_at_least=guarded_high_at_least,
        gains_again=gains_again,
        limit=limit,
        relative_gains=gains_C.tolist(),
        perplexity_gains=perplexity_gains_C.tolist(),
        perplexities=perplexities_C.tolist(),
    )


def _first_end(ends_C: Booleans, contexts: Sequence[int], limit: int | None) -> tuple[int, bool]:
    """Return the first context at which gains end, at most the limit, and whether they did not end on the grid."""
    ends = np.flatnonzero(ends_C)
    value = contexts[ends[0]] if len(ends) else contexts[-1]
    if limit is not None and limit <= value:
        return limit, False
    return int(value), len(ends) == 0


def _interval(
    ends_SC: Booleans, contexts: Sequence[int], limit: int | None
) -> tuple[int, int, bool]:
    """Return both ends of the interval over samples, and whether the higher one is a lower bound in some sample."""
    lengths = [_first_end(ends_C, contexts, limit) for ends_C in ends_SC]
    values = [value for value, _ in lengths]
    low, high = (
        np.quantile(values, INTERVAL, method="inverted_cdf").astype(int).tolist()
    )  # observed values
    return low, high, (high, True) in lengths


def measured_steps(
    losses_ICP: Array, fractions: Sequence[float], counts_SB: Array, block_P: Integers
) -> Steps:
    """Return the means of every step of the grid, in each of S samples of blocks.

        T = the fraction r of a sample's positions with the largest b(c,t) H = the fraction r of a
        sample's positions with the largest sum_{c''<c} b(c'',t); all positions at c_0

    Fractions of n positions are rounded, halves up, to at least one. A model's own mean loss falls
    if the mean of l_i(c',t) - l_i(c,t) is below 0 over all positions and over H.

    H has the largest mean best loss at shorter contexts: chosen at c itself, noise would look like
    gain. Chosen at later contexts, positions that gain at c' would be left out.

    Args:
        losses_ICP: l_i(c, t).
        fractions: r.
        counts_SB: number of copies of each block in each sample.
        block_P: block of each position.
    """
    n_S = counts_SB @ np.bincount(block_P)
    sizes_RS = np.maximum(1, np.floor(np.outer(fractions, n_S) + 0.5))
    short = []
    long = []
    rises = []
    before_P = np.zeros(losses_ICP.shape[2])
    for c, (now_IP, next_IP) in enumerate(pairwise(losses_ICP.transpose(1, 0, 2))):
        best_P = now_IP.min(axis=0)
        values_VP = np.vstack([best_P, np.minimum(best_P, next_IP)])
        means_RSV = _hardest_means(values_VP, sizes_RS, counts_SB, block_P)
        short.append(means_RSV[..., 0])
        long.append(means_RSV[..., 1:])

        change_IP = next_IP - now_IP
        sums_BI = np.stack([np.bincount(block_P, change_P) for change_P in change_IP], axis=1)
        rises_RSI = np.tile(counts_SB @ sums_BI >= 0, (len(fractions), 1, 1))
        if c > 0:
            change_RSV = _hardest_means(
                np.vstack([before_P, change_IP]), sizes_RS, counts_SB, block_P
            )
            rises_RSI = rises_RSI | (change_RSV[..., 1:] >= 0)
        rises.append(rises_RSI)
        before_P += best_P
    return Steps(
        short_RSC=np.stack(short, axis=-1),
        long_RSIC=np.stack(long, axis=-1),
        rises_RSIC=np.stack(rises, axis=-1),
    )


def _hardest_means(values_VP: Array, sizes_RS: Array, counts_SB: Array, block_P: Integers) -> Array:
    """Return means, [R, S, V], over the `sizes_RS` positions of each sample with the largest first values.

    Positions are sorted into buckets; equal values share one. Buckets before the one where T ends
    are summed by blocks, and only within that one the positions of a sample are counted.
    """
    order = np.argsort(-values_VP[0])
    values_VP = values_VP[:, order]
    block_P = block_P[order]
    is_lower = np.diff(values_VP[0], prepend=values_VP[0, :1]) != 0
    bucket_P = np.cumsum(is_lower) // BUCKET
    edges = np.searchsorted(bucket_P, np.arange(bucket_P[-1] + 2))
    counted_SK = _positions_before_buckets(bucket_P, block_P, counts_SB)
    totals_RSV = np.empty((*sizes_RS.shape, len(values_VP)))
    for r, size_S in enumerate(sizes_RS):
        last_S = (counted_SK <= size_S[:, None]).sum(axis=1) - 1
        for k in np.unique(last_S):
            here = np.flatnonzero(last_S == k)
            start, stop = edges[k : k + 2]
            counts = counts_SB[here]
            size = size_S[here] - counted_SK[here, k]
            weights = _shares_of_hardest(
                values_VP[0, start:stop], size, counts[:, block_P[start:stop]]
            )
            for v, values_P in enumerate(
                values_VP
            ):  # one by one: rounding must not depend on the other values
                sums_B = np.bincount(
                    block_P[:start], values_P[:start], minlength=counts_SB.shape[1]
                )
                totals_RSV[r, here, v] = counts @ sums_B + weights @ values_P[start:stop]
    return totals_RSV / sizes_RS[..., None]


def _positions_before_buckets(bucket_P: Integers, block_P: Integers, counts_SB: Array) -> Array:
    """Return the number of a sample's positions before each bucket, [S, K]."""
    n_blocks = counts_SB.shape[1]
    n_buckets = int(bucket_P[-1]) + 1
    sizes_BK = np.bincount(block_P * n_buckets + bucket_P, minlength=n_blocks * n_buckets)
    sizes_BK = sizes_BK.reshape(n_blocks, n_buckets)
    counted: Array = counts_SB @ (np.cumsum(sizes_BK, axis=1) - sizes_BK)
    return counted


def _shares_of_hardest(sorted_P: Array, size_S: Array, counts_SP: Array) -> Array:
    """Return how often each position is in T, [S, P]: the `size_S` positions with the largest losses.

    Positions that tie for the last places share them equally; the order of positions does not
    matter.

    Args:
        sorted_P: losses, descending.
        size_S: positions in T, in each sample.
        counts_SP: count of each position in each sample.
    """
    is_first = np.concatenate([[True], sorted_P[1:] != sorted_P[:-1]])
    totals = np.add.reduceat(counts_SP, np.flatnonzero(is_first), axis=1)
    earlier = np.cumsum(totals, axis=1) - totals
    taken = np.clip(size_S[:, None] - earlier, 0, totals)
    shares = taken / np.maximum(totals, 1)
    weights_SP: Array = counts_SP * shares[:, np.cumsum(is_first) - 1]
    return weights_SP


def resampled(n_blocks: int, n_samples: int, seed: int) -> Array:
    """Return the counts [S, B] of B blocks drawn with replacement."""
    evenly = np.full(n_blocks, 1 / n_blocks)
    counts_SB = np.random.default_rng(seed).multinomial(n_blocks, evenly, size=n_samples)
    return counts_SB.astype(np.float64)
