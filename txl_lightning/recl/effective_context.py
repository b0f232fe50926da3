"""Definition of relative effective context length, RECL (section 4.3 and appendix C), on measured losses.

The models of a group are scored at the same P positions with exactly c tokens of context, for every c of a grid
c_0 < c_1 < …, by default in even steps Δ. Shape letters: I models, C contexts, P positions in B blocks,
S bootstrap samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_lightning.errors import LENGTH, at_most, check, require

Array = NDArray[np.float64]
ENDS = [(1 - 0.95) / 2, (1 + 0.95) / 2]  # of an interval
SAMPLED_AT_ONCE = 1_000_000
BUCKET = 128  # distinct losses


@dataclass(frozen=True)
class EffectiveContext:
    """RECL of one model in its group at one fraction r of hardest positions.

    Args:
        value: RECL, in tokens, or in bytes where the contexts are: the first c whose relative gain is below the
            threshold, at most `limit`.
        at_least: whether `value` is only a lower bound: no gain on the grid was below the threshold.
        low: lower end of the percentile interval of RECL over resampled blocks of positions.
        high: upper end of that interval.
        high_at_least: whether `high` is only a lower bound.
        guarded: RECL that also ends where the model's own mean loss no longer falls, over all or over hard positions.
        guarded_at_least: whether `guarded` is only a lower bound.
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
    limit: int | None
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
    blocks: NDArray[np.int64] | None = None,
) -> dict[str, dict[float, EffectiveContext]]:
    """Return the RECL of every model of a group, for every fraction r of hardest positions.

        b(c,t)    = min_i l_i(c,t)
        T         = the fraction r of positions with the largest b(c,t), chosen for every c
        f_i(c,c') = mean_{t∈T} min(b(c,t), l_i(c',t))
        g_i(c,c') = (exp f_i(c,c) - exp f_i(c,c')) / exp f_i(c,c)
        RECL_i    = the first c with g_i(c, c + Δ) < threshold
        guarded_i = the first c with g_i(c, c + Δ) < threshold, or at which the mean of l_i(c + Δ, t) - l_i(c, t) over
                    all positions, or over the hard ones of `_rises`, is not below 0

    f_i(c,c') keeps b(c,t) where more context is worse, so a step gains wherever single losses fall, even if their
    mean rises: losses that fluctuate with c lengthen RECL, but hardly guarded RECL.
    Compare RECL only within a group, on one grid.
    RECL does not depend on the order of models and positions; its interval depends on the order of blocks.

    Args:
        losses: l_i(c,t) of every model, [C, P], in nats.
        contexts: the grid, ascending; c + Δ is the context after c, with another Δ for each c on an uneven grid.
        fractions: r, each in (0, 1].
        threshold: smallest relative gain that counts.
        limits: number of tokens that each model can see; None for no limit. Losses beyond it are those at the limit.
        bootstrap: resamples of the blocks for the intervals; 0 for none (low = high = value).
        seed: seed of the resampling.
        blocks: block of each position, [P], from 0. Losses of neighbours are correlated; if neighbours are not
            in one block, intervals are too narrow. None for a block per position.

    Raises:
        OptionError: an option, the grid or the losses are not usable.
    """
    check_definition(contexts, fractions, threshold, bootstrap)
    losses_ICP = np.stack([np.asarray(of_model, dtype=np.float64) for of_model in losses.values()])
    require(bool(np.isfinite(losses_ICP).all()), "losses", "nan or inf", "must be finite")
    C, P = losses_ICP.shape[1:]
    require(len(contexts) == C, "contexts", list(contexts), f"must be {C}, as the losses have")
    names, block_P = np.unique(np.arange(P) if blocks is None else blocks, return_inverse=True)
    require(len(block_P) == P, "blocks", f"{len(block_P)} numbers", f"must be {P}, one for each position")
    limit_of = {name: (limits or {}).get(name) for name in losses}
    limit_I = np.array([np.iinfo(np.int64).max if limit is None else limit for limit in limit_of.values()])
    rises_RIC = _rises(losses_ICP, fractions)
    samples = chain([np.ones((1, len(names)))], resampled(len(names), bootstrap, seed))
    found = [means_on_hard_positions(losses_ICP, fractions, counts_SB, block_P) for counts_SB in samples]

    results: dict[str, dict[float, EffectiveContext]] = {name: {} for name in losses}
    for index, r in enumerate(fractions):
        means = [of_samples[index] for of_samples in found]
        gains = [-np.expm1(long_SIC - short_SC[:, None]) for short_SC, long_SIC in means]  # g
        (short_C,), (long_IC,), (gains_IC,) = *means[0], gains[0]  # of all blocks
        (value_I,), (at_least_I,) = _first(gains[0] < threshold, contexts, limit_I)
        (guarded_I,), (open_I,) = _first((gains[0] < threshold) | rises_RIC[index], contexts, limit_I)
        values_SI, open_SI = _first(np.concatenate(gains[1:] or gains) < threshold, contexts, limit_I)
        low_I, high_I = np.quantile(values_SI, ENDS, axis=0, method="inverted_cdf").astype(int)  # observed values
        high_open_I = (open_SI & (values_SI == high_I)).any(axis=0)
        numbers = (value_I, at_least_I, low_I, high_I, high_open_I, guarded_I, open_I)  # in the order of the fields
        curves = (gains_IC, np.exp(short_C) - np.exp(long_IC), np.tile(np.exp(short_C), (len(losses), 1)))
        for i, (name, limit) in enumerate(limit_of.items()):
            of_model: Any = (*(of_I[i].item() for of_I in numbers), limit, *(of_IC[i].tolist() for of_IC in curves))
            results[name][r] = EffectiveContext(*of_model)
    return results


def check_definition(contexts: Sequence[int], fractions: Sequence[float], threshold: float, bootstrap: int) -> None:
    """Check the grid and the options of RECL.

    Raises:
        OptionError: naming the option.
    """
    ascending = len(contexts) >= 2 and all(a < b for a, b in pairwise([0, *contexts]))
    require(ascending, "contexts", list(contexts), "must be at least two, ascending, the first >= 1")
    distinct = len(set(fractions)) == len(fractions) >= 1
    in_range = distinct and all(0 < r <= 1 for r in fractions)
    require(in_range, "fractions", list(fractions), "must be different numbers in (0, 1]")
    require(0 < threshold < 1, "threshold", threshold, "must be in (0, 1)")
    check("bootstrap", bootstrap, LENGTH, at_most("bootstrap"))


def means_on_hard_positions(
    losses_ICP: Array, fractions: Sequence[float], counts_SB: Array, block_P: NDArray[np.int64]
) -> list[tuple[Array, Array]]:
    """Return the means for every r: f(c, c), [S, C-1], common to all models, and f_i(c, c'), [S, I, C-1], in nats.

    Args:
        losses_ICP: l_i(c, t).
        fractions: r; T has r·n of a sample's n positions, rounded (halves up), at least one.
        counts_SB: how often each block is in each sample.
        block_P: block of each position.
    """
    n_S, steps = counts_SB @ np.bincount(block_P), []
    sizes_RS = np.maximum(1, np.floor(np.outer(fractions, n_S) + 0.5))
    for now_IP, next_IP in pairwise(losses_ICP.transpose(1, 0, 2)):
        best_P = now_IP.min(axis=0)
        steps.append(_hardest_means(np.vstack([best_P, np.minimum(best_P, next_IP)]), sizes_RS, counts_SB, block_P))
    return [(of_r[:, 0], of_r[:, 1:]) for of_r in np.stack(steps, axis=-1)]


def _hardest_means(
    values_VP: Array, sizes_RS: Array, counts_SB: Array, block_P: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return means, [R, S, V], over the `sizes_RS` positions of each sample with the largest first values.

    Positions are sorted into buckets; equal losses share one. Buckets before the one where T ends are summed by blocks,
    and only within that one the positions of a sample are counted.
    """
    order = np.argsort(-values_VP[0])
    values_VP, block_P = values_VP[:, order], block_P[order]
    bucket_P = np.cumsum(np.diff(values_VP[0], prepend=values_VP[0, :1]) != 0) // BUCKET
    B, K = counts_SB.shape[1], int(bucket_P[-1]) + 1
    exact = np.float32 if len(order) < 1 << 23 else np.float64  # for integers
    before_BK, edges = np.zeros((B, K), exact), np.searchsorted(bucket_P, np.arange(K + 1))
    np.cumsum(np.bincount(block_P * K + bucket_P, minlength=B * K).reshape(B, K)[:, :-1], axis=1, out=before_BK[:, 1:])
    counted_SK, totals_RSV = counts_SB.astype(exact) @ before_BK, np.empty((*sizes_RS.shape, len(values_VP)))
    for size_S, totals_SV in zip(sizes_RS, totals_RSV, strict=True):
        last_S = (counted_SK <= size_S[:, None]).sum(axis=1) - 1
        for k in np.unique(last_S):
            here, start, inside = np.flatnonzero(last_S == k), edges[k], slice(edges[k], edges[k + 1])
            counts = counts_SB[here]
            weights = _hardest(values_VP[0, inside], size_S[here] - counted_SK[here, k], counts[:, block_P[inside]])
            for v, values_P in enumerate(values_VP):  # rounding must not depend on the other values
                sums_B = np.bincount(block_P[:start], values_P[:start], minlength=B)
                totals_SV[here, v] = counts @ sums_B + weights @ values_P[inside]
    return totals_RSV / sizes_RS[..., None]


def _rises(losses_ICP: Array, fractions: Sequence[float]) -> NDArray[np.bool_]:
    """Return whether a model's own mean loss no longer falls from c to c', for every r, [R, I, C-1].

        H = the fraction r of positions with the largest sum_{c''<c} b(c'',t); all positions at c_0, and at r = 1

    The mean of l_i(c',t) - l_i(c,t) must be below 0 over all positions and over H.

    Hard positions for the step at c have the largest mean best loss at shorter contexts: chosen at c itself, noise
    would look like gain. Chosen at later contexts, positions that gain at c' would be left out.
    """
    _, C, P = losses_ICP.shape
    size_R = np.maximum(1, np.floor(np.array(fractions) * P + 0.5))
    rises_RIC = np.tile(np.diff(losses_ICP.mean(axis=2)) >= 0, (len(size_R), 1, 1))
    before_P = np.zeros(P)
    for c in range(C - 1):
        order = np.argsort(-before_P)
        weights_RP = _hardest(before_P[order], size_R, np.ones((len(size_R), P)))
        rises_RIC[:, :, c] |= weights_RP @ (losses_ICP[:, c + 1] - losses_ICP[:, c])[:, order].T >= 0
        before_P += losses_ICP[:, c].min(axis=0)
    return rises_RIC


def _hardest(sorted_P: Array, size_S: Array, counts_SP: Array) -> Array:
    """Return how often each position is in T, [S, P]: the `size_S` positions with the largest losses.

    Positions that tie for the last places share them equally; the order of positions does not matter.

    Args:
        sorted_P: losses, descending.
        size_S: positions in T, in each sample.
        counts_SP: count of each position in each sample.
    """
    is_first = np.concatenate([[True], sorted_P[1:] != sorted_P[:-1]])
    totals = np.add.reduceat(counts_SP, np.flatnonzero(is_first), axis=1)
    taken = np.clip(size_S[:, None] - (np.cumsum(totals, axis=1) - totals), 0, totals)
    shares = taken / np.maximum(totals, 1)
    weights_SP: Array = counts_SP * shares[:, np.cumsum(is_first) - 1]
    return weights_SP


def _first(
    ends_SIC: NDArray[np.bool_], contexts: Sequence[int], limit_I: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the first context at which gains end, by sample and model, and whether they did not end on the grid."""
    at_least_SI = ~ends_SIC.any(axis=2)
    first_SI = np.where(at_least_SI, len(contexts) - 1, ends_SIC.argmax(axis=2))
    values_SI = np.asarray(contexts)[first_SI]
    return np.minimum(values_SI, limit_I), at_least_SI & (values_SI < limit_I)


def resampled(n_blocks: int, n_samples: int, seed: int) -> Iterator[Array]:
    """Yield the counts [S, B] of B blocks drawn with replacement, for some samples at a time."""
    generator = np.random.default_rng(seed)
    at_once = max(1, SAMPLED_AT_ONCE // n_blocks)
    evenly = np.full(n_blocks, 1 / n_blocks)
    for start in range(0, n_samples, at_once):
        yield generator.multinomial(n_blocks, evenly, size=min(at_once, n_samples - start)).astype(np.float64)
