"""Relative effective context length, RECL (section 4.3 and appendix C), computed from measured losses.

All models in a group are scored at the same P positions with exactly c context tokens, for every c in a grid c_0 < c_1
< …, by default in even steps Δ. Shape letters: I models, C contexts, P positions in B blocks, S bootstrap samples, R
fractions, V values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_lightning.errors import LENGTH, at_most, check, require

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]
Entries = dict[str, Any]
"""Entries of `recl.json`, by name."""

INTERVAL = [0.025, 0.975]  # quantiles
BUCKET = 160  # distinct losses


@dataclass(frozen=True)
class EffectiveContext:
    """One model's RECL in its group, at one fraction r of hardest positions.

    Args:
        value: RECL in tokens: the first c whose relative gain is below the threshold, at most
            `limit`.
        at_least: whether `value` is only a lower bound: no gain on the grid was below the
            threshold.
        low: lower end of RECL's percentile interval over resampled blocks.
        high: upper end of that interval.
        guarded: RECL that also ends where the model's mean loss no longer falls, over all or over hard positions.
        guarded_at_least: whether `guarded` is only a lower bound.
        guarded_low: lower end of the interval for `guarded`.
        guarded_high: upper end of that interval.
        gains_again: first context beyond `value` to which a step gains the threshold again; None if
            there is none.
        relative_gains: g(c, c') for every c in the grid except the last, with c' = c + Δ.
        perplexity_gains: exp f(c, c) - exp f(c, c') at these c (Figure 3).
        perplexities: exp f(c, c) at these c, equal for all models in the group.
    """

    value: int
    at_least: bool
    low: int
    high: int
    guarded: int
    guarded_at_least: bool
    guarded_low: int
    guarded_high: int
    gains_again: int | None
    relative_gains: list[float]
    perplexity_gains: list[float]
    perplexities: list[float]


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
    """Return RECL for every model in a group and every fraction r of hardest positions.

        b(c,t)    = min_i l_i(c,t)
        T         = the fraction r of positions with the largest b(c,t), chosen for every c
        f_i(c,c') = mean_{t∈T} min(b(c,t), l_i(c',t))
        g_i(c,c') = (exp f_i(c,c) - exp f_i(c,c')) / exp f_i(c,c)
        RECL_i    = the first c with g_i(c, c + Δ) < threshold
        guarded_i = the first c with g_i(c, c + Δ) < threshold, or at which the mean of l_i(c + Δ, t) - l_i(c, t) over
                    all positions, or over the hard ones of `measured_steps`, is not below 0

    f_i(c,c') keeps b(c,t) where more context is worse, so a step gains wherever single losses fall, even if their mean
    rises: losses that fluctuate with c lengthen RECL, but hardly guarded RECL. Compare RECL only within a group, on one
    grid. RECL does not depend on the order of models and positions; its interval depends on the block order.

    Args:
        losses: l_i(c,t) for every model, [C, P], in nats.
        contexts: the grid, ascending; c + Δ is the context after c, with another Δ for each c on an
            uneven grid.
        fractions: r, each in (0, 1].
        threshold: smallest relative gain that counts.
        limits: tokens that each model can see; None for no limit. Losses for longer contexts repeat the loss at the
            limit.
        bootstrap: block resamples for the intervals; 0 for none (low = high = value).
        seed: seed for resampling.
        blocks: block index per position, [P], from 0. Neighbours' losses are correlated; unless neighbours share a
            block, intervals are too narrow. None: every position is a block.

    Raises:
        OptionError: an option, the grid or the losses are not usable.
    """
    check_definition(contexts, fractions, threshold, bootstrap)
    losses_ICP = np.stack([*losses.values()]).astype(np.float64)
    _, n_contexts, n_positions = losses_ICP.shape
    require(
        bool(np.isfinite(losses_ICP).all()),
        "losses",
        "nan or inf",
        "must be finite",
    )
    allowed = f"must be {n_contexts}, as the losses have"
    require(
        len(contexts) == n_contexts,
        "contexts",
        list(contexts),
        allowed,
    )
    if blocks is None:
        blocks = np.arange(n_positions)
    block_names, block_P = np.unique(blocks, return_inverse=True)
    counts_SB = np.ones((1 + bootstrap, len(block_names)))  # the first sample is the text itself
    counts_SB[1:] = resampled(
        len(block_names),
        bootstrap,
        seed,
    )
    means_RVSC, rises_RISC = measured_steps(losses_ICP, fractions, counts_SB, block_P)
    results: dict[str, dict[float, EffectiveContext]] = {}
    for i, name in enumerate(losses):
        limit = (limits or {}).get(name)
        results[name] = {}
        for k, r in enumerate(fractions):
            steps = (means_RVSC[k, 0], means_RVSC[k, 1 + i], rises_RISC[k, i])
            results[name][r] = _effective_context(
                *steps,
                contexts,
                threshold,
                limit,
            )
    return results


def check_definition(
    contexts: Sequence[int],
    fractions: Sequence[float],
    threshold: float,
    bootstrap: int,
) -> None:
    """Check the grid and RECL's options.

    Raises:
        OptionError: naming the option.
    """
    is_grid = len(contexts) >= 2 and min(np.diff([0, *contexts])) > 0
    allowed = "must be at least two, ascending, the first >= 1"
    require(is_grid, "contexts", list(contexts), allowed)
    are_fractions = 0 < min(fractions, default=0) <= max(fractions, default=1) <= 1
    require(are_fractions, "fractions", list(fractions), "must be numbers in (0, 1]")
    require(0 < threshold < 1, "threshold", threshold, "must be in (0, 1)")
    check("bootstrap", bootstrap, LENGTH, at_most(100_000))


def _effective_context(
    short_SC: Array,
    long_SC: Array,
    rises_SC: Booleans,
    contexts: Sequence[int],
    threshold: float,
    limit: int | None,
) -> EffectiveContext:
    gains_SC = -np.expm1(long_SC - short_SC)
    ends_SC = gains_SC < threshold
    value, at_least, low, high = _length(ends_SC, contexts, limit)
    guarded = _length(ends_SC | rises_SC, contexts, limit)
    gains_C = np.flatnonzero(ends_SC[0] < (np.array(contexts[:-1]) > value))
    perplexities_C = np.exp(short_SC[0])
    return EffectiveContext(
        value,
        at_least,
        low,
        high,
        *guarded,
        gains_again=contexts[gains_C[0] + 1] if len(gains_C) else None,
        relative_gains=gains_SC[0].tolist(),
        perplexity_gains=(perplexities_C - np.exp(long_SC[0])).tolist(),
        perplexities=perplexities_C.tolist(),
    )


def _length(
    ends_SC: Booleans, contexts: Sequence[int], limit: int | None
) -> tuple[int, bool, int, int]:
    """Return the first context at which gains end, at most the limit, whether it may be longer, and its interval.

    The first sample is the text itself; the interval is over the others. Where gains do not end it is the longest
    context.
    """
    longest = contexts[-1]
    ends = np.pad(
        ends_SC,
        ((0, 0), (0, 1)),
        constant_values=True,
    ).argmax(axis=1)
    value_S = np.minimum(np.array(contexts)[ends], limit or longest)
    value = int(value_S[0])
    sampled_S = value_S[min(1, len(value_S) - 1) :]
    low, high = np.quantile(sampled_S, INTERVAL, method="inverted_cdf")
    is_open = limit is None or limit > longest
    return value, is_open and value == longest, int(low), int(high)


def measured_steps(
    losses_ICP: Array,
    fractions: Sequence[float],
    counts_SB: Array,
    block_P: Integers,
) -> tuple[Array, Booleans]:
    """Return the means for every grid step from c to c', in each block sample (S in all), in nats.

        T = the fraction r of a sample's positions with the largest b(c,t)
        H = the fraction r of a sample's positions with the largest sum_{c''<c} b(c'',t); all positions at c_0

    These are f(c, c), common to all models, and then f_i(c, c'), [R, 1 + I, S, C]; and whether a
    model's own mean loss does not fall, [R, I, S, C].

    A fraction times n positions is rounded, halves up, to at least one. A model's mean loss falls if the mean of
    l_i(c',t) - l_i(c,t) is below 0 over all positions and over H.

    H has the largest mean best loss at shorter contexts: chosen at c itself, noise would look like
    gain. Chosen at later contexts, positions that gain at c' would be left out.

    Args:
        losses_ICP: l_i(c, t).
        fractions: r.
        counts_SB: how often each sample holds each block.
        block_P: block index per position.
    """
    n_S = counts_SB @ np.bincount(block_P)
    sizes_RS = np.maximum(1, np.floor(np.outer(fractions, n_S) + 0.5))
    all_RS = np.tile(n_S, (len(fractions) + 1, 1))
    best_CP = losses_ICP.min(axis=0)
    before_CP = np.cumsum(best_CP, axis=0)
    means = []
    rises = []
    for c, best_P in enumerate(best_CP[:-1]):
        next_IP = losses_ICP[:, c + 1]
        values_VP = np.vstack([best_P, np.minimum(best_P, next_IP)])
        means.append(_hardest_means(best_P, values_VP, sizes_RS, counts_SB, block_P))
        sizes_of_H_RS = all_RS
        if c > 0:
            sizes_of_H_RS = np.vstack([sizes_RS, n_S])
        changes_IP = next_IP - losses_ICP[:, c]
        hardness_P = before_CP[max(0, c - 1)]
        changes_RIS = _hardest_means(hardness_P, changes_IP, sizes_of_H_RS, counts_SB, block_P)
        rises_RIS = changes_RIS >= 0
        rises.append(rises_RIS[:-1] | rises_RIS[-1])
    return np.stack(means, axis=-1), np.stack(rises, axis=-1)


def _hardest_means(
    hardness_P: Array,
    values_VP: Array,
    sizes_RS: Array,
    counts_SB: Array,
    block_P: Integers,
) -> Array:
    """Return means, [R, V, S], over each sample's `sizes_RS` hardest positions.

    Positions that tie for the last places share them equally; the positions' order does not matter. Sorted positions
    are divided into buckets. Blocks have sums of whole buckets; only in the bucket where T ends, for N pairs of a
    fraction and a sample, are positions counted.
    """
    order = np.argsort(-hardness_P)
    hardness_P = hardness_P[order]
    values_VP = values_VP[:, order]
    block_P = block_P[order]
    is_less = np.diff(hardness_P, prepend=hardness_P[0]) != 0
    bucket_P = np.cumsum(is_less) // BUCKET
    n_buckets = bucket_P[-1] + 1
    shape = (counts_SB.shape[1], n_buckets)
    cell_P = np.ravel_multi_index((block_P, bucket_P), shape)
    sums_VBK = []
    for weights_P in (np.ones(len(order)), *values_VP):
        sums = np.bincount(cell_P, weights_P, np.prod(shape))
        sums_VBK.append(sums.reshape(shape))
    before_VBK = np.cumsum(sums_VBK, axis=2) - sums_VBK
    harder_SK = counts_SB @ before_VBK[0]
    last_RS = (harder_SK < sizes_RS[:, :, None]).sum(axis=2) - 1
    totals_RSV = np.empty((*sizes_RS.shape, len(values_VP)))
    for k in np.unique(last_RS):
        start, stop = np.searchsorted(bucket_P, [k, k + 1])
        pairs = np.nonzero(last_RS == k)
        samples = pairs[1]
        counts_NP = counts_SB[samples][:, block_P[start:stop]]
        sizes_N = sizes_RS[pairs] - harder_SK[samples, k]
        weights_NP = _hardest_counts(hardness_P[start:stop], sizes_N, counts_NP)
        whole_NV = counts_SB[samples] @ before_VBK[1:, :, k].T
        totals_RSV[pairs] = whole_NV + weights_NP @ values_VP[:, start:stop].T
    return np.moveaxis(
        totals_RSV / sizes_RS[:, :, None],
        2,
        1,
    )


def _hardest_counts(sorted_P: Array, sizes_S: Array, counts_SP: Array) -> Array:
    """Return how often each position is in T, [S, P]: the `sizes_S` hardest, sorted; ties share the last places."""
    up_to_SP = np.cumsum(counts_SP, axis=1)
    first_P = np.searchsorted(-sorted_P, -sorted_P)
    last_P = np.searchsorted(-sorted_P, -sorted_P, side="right") - 1
    harder_SP = (up_to_SP - counts_SP)[:, first_P]
    ties_SP = up_to_SP[:, last_P] - harder_SP
    shares_SP = (sizes_S[:, None] - harder_SP) / np.maximum(ties_SP, 1)
    return counts_SP * np.clip(shares_SP, 0, 1)


def resampled(n_blocks: int, n_samples: int, seed: int) -> Array:
    """Return counts [S, B] for B blocks drawn with replacement."""
    evenly = np.full(n_blocks, 1 / n_blocks)
    counts_SB = np.random.default_rng(seed).multinomial(
        n_blocks,
        evenly,
        size=n_samples,
    )
    return counts_SB.astype(np.float64)
