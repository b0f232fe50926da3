"""Definition of relative effective context length, RECL (section 4.3 and appendix C), on measured losses.

The models of a group are scored at the same P positions with exactly c tokens of context, for every c of a grid
c_0, c_0 + Δ, …. Shape letters: I models, C contexts, P positions in B blocks,
S bootstrap samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from txl_lightning.errors import require

Array = NDArray[np.float64]
INTERVAL = 0.95
SAMPLED_AT_ONCE = 1_000_000
BUCKET = 64  # positions, about


@dataclass(frozen=True)
class EffectiveContext:
    """RECL of one model in its group at one fraction r of hardest positions.

    Args:
        value: RECL in tokens: the first c whose relative gain is below the threshold, at most `limit`.
        at_least: whether `value` is only a lower bound: no gain on the grid was below the threshold.
        low: lower end of the percentile interval of RECL over resampled blocks of positions.
        high: upper end of that interval.
        high_at_least: whether `high` is only a lower bound.
        longer_than: ends of the interval of RECL minus that of each other model, over the same resamples, by model;
            empty without resamples.
        limit: number of tokens the model can see; None for no limit.
        relative_gains: g(c, c') for every c of the grid but the last, with c' = c + Δ.
        perplexity_gains: exp f(c, c) - exp f(c, c') at these c (Figure 3).
        perplexities: exp f(c, c) at these c, equal for all models of the group.
    """

    value: int
    at_least: bool
    low: int
    high: int
    high_at_least: bool
    longer_than: dict[str, list[int]]
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

    f_i(c,c') keeps b(c,t) where more context is worse, so a step gains wherever single losses fall, even if their
    mean rises: losses that fluctuate with c lengthen RECL. Compare RECL only within a group, on one grid.
    RECL does not depend on the order of models and positions; its interval depends on the order of blocks.

    Args:
        losses: l_i(c,t) of every model, [C, P], in nats.
        contexts: the grid c_0, c_0 + Δ, ….
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
    require(len(losses) >= 1, "losses", "{}", "must be of at least one model")
    losses_ICP = np.stack([np.asarray(of_model, dtype=np.float64) for of_model in losses.values()])
    require(bool(np.isfinite(losses_ICP).all()), "losses", "nan or inf", "must be finite")
    C, P = losses_ICP.shape[1:]
    require(len(contexts) == C, "contexts", list(contexts), f"must be {C}, as the losses have")
    if blocks is not None:
        require(len(blocks) == P, "blocks", f"{len(blocks)} numbers", f"must be {P}, one for each position")

    results: dict[str, dict[float, EffectiveContext]] = {name: {} for name in losses}
    names, block_P = np.unique(np.arange(P) if blocks is None else blocks, return_inverse=True)
    all_once = np.ones((1, len(names)))
    point = {r: _mean_losses(losses_ICP, r, all_once, block_P) for r in fractions}
    samples: dict[float, list[Array]] = {r: [] for r in fractions}
    for counts_SB in resampled(len(names), bootstrap, seed):
        for r in fractions:
            samples[r].append(_relative_gain(*_mean_losses(losses_ICP, r, counts_SB, block_P)))
    for r in fractions:
        short_SC, long_SIC = point[r]
        gains_IC = _relative_gain(short_SC, long_SIC)[0]
        sampled_SIC = np.concatenate(samples[r]) if bootstrap else gains_IC[None]
        limit_of = {name: (limits or {}).get(name) for name in losses}
        sampled = {n: _first_below(sampled_SIC[:, i], contexts, threshold, limit_of[n]) for i, n in enumerate(losses)}
        for i, name in enumerate(losses):
            others = {other: of_other_S for other, (of_other_S, _) in sampled.items() if other != name and bootstrap}
            value, at_least = _first_below(gains_IC[None, i], contexts, threshold, limit_of[name])
            values_S, at_least_S = sampled[name]
            low, high = _interval(values_S)
            results[name][r] = EffectiveContext(
                value=int(value[0]),
                at_least=bool(at_least[0]),
                low=low,
                high=high,
                high_at_least=bool(at_least_S[values_S == high].any()),
                longer_than={other: _interval(values_S - of_other_S) for other, of_other_S in others.items()},
                limit=limit_of[name],
                relative_gains=gains_IC[i].tolist(),
                perplexity_gains=(np.exp(short_SC[0]) - np.exp(long_SIC[0, i])).tolist(),
                perplexities=np.exp(short_SC[0]).tolist(),
            )
    return results


def check_definition(contexts: Sequence[int], fractions: Sequence[float], threshold: float, bootstrap: int) -> None:
    """Check the grid and the options of RECL.

    Raises:
        OptionError: naming the option.
    """
    steps = {later - earlier for earlier, later in pairwise(contexts)}
    even = len(steps) == 1 and min(steps) >= 1 and contexts[0] >= 1
    require(even, "contexts", list(contexts), "must be at least two in even steps, the first >= 1")
    distinct = len(set(fractions)) == len(fractions) >= 1
    in_range = distinct and all(0 < r <= 1 for r in fractions)
    require(in_range, "fractions", list(fractions), "must be different numbers in (0, 1]")
    require(0 < threshold < 1, "threshold", threshold, "must be in (0, 1)")
    require(bootstrap >= 0, "bootstrap", bootstrap, "must be an integer >= 0")


def _mean_losses(
    losses_ICP: Array, fraction: float, counts_SB: Array, block_P: NDArray[np.int64]
) -> tuple[Array, Array]:
    """Return f(c, c), [S, C-1], common to all models, and f_i(c, c'), [S, I, C-1], in nats.

    T has r·n of a sample's n positions, rounded (halves up), at least one.
    """
    I, C, _ = losses_ICP.shape  # noqa: E741
    size_S = np.maximum(1, np.floor(fraction * (counts_SB @ np.bincount(block_P)) + 0.5))
    short_SC = np.empty((len(counts_SB), C - 1))
    long_SIC = np.empty((len(counts_SB), I, C - 1))
    for c in range(C - 1):
        best_P = losses_ICP[:, c].min(axis=0)
        values = [best_P, *(np.minimum(best_P, losses_ICP[i, c + 1]) for i in range(I))]
        short_SC[:, c], *longs = (total_S / size_S for total_S in _sums(best_P, values, size_S, counts_SB, block_P))
        long_SIC[:, :, c] = np.stack(longs, axis=1)
    return short_SC, long_SIC


def _sums(
    losses_P: Array, values: list[Array], size_S: Array, counts_SB: Array, block_P: NDArray[np.int64]
) -> list[Array]:
    """Return the sum of each of `values`, [P], over the `size_S` positions of each sample with the largest losses.

    Positions are sorted into buckets. All positions of the buckets before the last one of T are summed by blocks;
    only within the last bucket are the positions of each sample counted.
    """
    order = np.argsort(-losses_P, kind="stable")
    sorted_P = losses_P[order]
    firsts = np.flatnonzero(np.concatenate([[True], sorted_P[1:] != sorted_P[:-1]]))  # equal losses share a bucket
    starts_K = firsts[np.unique(firsts // BUCKET, return_index=True)[1]]
    bucket_P = np.searchsorted(starts_K, np.arange(len(order)), side="right") - 1
    shape = (counts_SB.shape[1], len(starts_K) + 1)
    cell_P = block_P[order] * shape[1] + bucket_P + 1

    def before(values_P: Array | None = None) -> Array:
        """Sum over all positions before each bucket, [S, K]."""
        sums_BK = np.bincount(cell_P, values_P, minlength=shape[0] * shape[1]).reshape(shape)
        sums_SK: Array = counts_SB @ sums_BK.cumsum(axis=1)[:, :-1]
        return sums_SK

    counted_SK = before()
    last_S = (counted_SK <= size_S[:, None]).sum(axis=1) - 1
    of_last = (np.arange(len(last_S)), last_S)
    left_S, totals = size_S - counted_SK[of_last], [before(values_P[order])[of_last] for values_P in values]
    for k in np.unique(last_S):
        here = np.flatnonzero(last_S == k)
        inside = order[bucket_P == k]
        weights_SP = _hardest(losses_P[inside], left_S[here], counts_SB[here][:, block_P[inside]])
        for total_S, values_P in zip(totals, values, strict=True):  # rounding must not depend on the other values
            total_S[here] += weights_SP @ values_P[inside]
    return totals


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


def _relative_gain(short_SC: Array, long_SIC: Array) -> Array:
    """g = (exp f(c,c) - exp f(c,c')) / exp f(c,c) = 1 - exp(f(c,c') - f(c,c))."""
    return -np.expm1(long_SIC - short_SC[:, None])


def _first_below(
    gains_SC: Array, contexts: Sequence[int], threshold: float, limit: int | None
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the RECL of each sample, and whether it is only a lower bound: no gain was below the threshold."""
    below = gains_SC < threshold
    at_least: NDArray[np.bool_] = ~np.any(below, axis=1)
    first = np.where(at_least, len(contexts) - 1, below.argmax(axis=1))
    values = np.asarray(contexts)[first]
    if limit is None:
        return values, at_least
    return np.minimum(values, limit), at_least & (values < limit)


def _interval(values_S: NDArray[np.int64]) -> list[int]:
    """Return the ends of the percentile interval: observed values, for RECL is always a context of the grid."""
    ends = np.quantile(values_S, [(1 - INTERVAL) / 2, (1 + INTERVAL) / 2], method="inverted_cdf")
    return [int(end) for end in ends]


def resampled(n_blocks: int, n_samples: int, seed: int) -> Iterator[Array]:
    """Yield the counts [S, B] of B blocks drawn with replacement, for some samples at a time."""
    generator = np.random.default_rng(seed)
    at_once = max(1, SAMPLED_AT_ONCE // n_blocks)
    evenly = np.full(n_blocks, 1 / n_blocks)
    for start in range(0, n_samples, at_once):
        yield generator.multinomial(n_blocks, evenly, size=min(at_once, n_samples - start)).astype(np.float64)
