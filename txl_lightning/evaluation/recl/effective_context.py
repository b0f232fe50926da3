"""Definition of relative effective context length, RECL (section 4.3 and appendix C), on measured losses.

The models of a group are scored at the same P positions with exactly c tokens of context, for every c of a grid
c_0, c_0 + Δ, …. Shape letters: I models, C contexts, P positions, S bootstrap samples.
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
SAMPLED_AT_ONCE = 100_000


@dataclass(frozen=True)
class EffectiveContext:
    """RECL of one model in its group at one fraction r of hardest positions.

    Args:
        value: RECL in tokens: the first c whose relative gain is below the threshold, at most `limit`.
        at_least: whether `value` is only a lower bound: no gain on the grid was below the threshold.
        low: lower end of the percentile interval of RECL over resampled blocks of positions.
        high: upper end of that interval.
        high_at_least: whether `high` is only a lower bound.
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
    all_once = np.ones((1, P))
    point = {r: _mean_losses(losses_ICP, r, all_once) for r in fractions}
    samples: dict[float, list[Array]] = {r: [] for r in fractions}
    for counts_SP in resampled(np.arange(P) if blocks is None else blocks, bootstrap, seed):
        for r in fractions:
            samples[r].append(_relative_gain(*_mean_losses(losses_ICP, r, counts_SP)))
    for r in fractions:
        short_SC, long_SIC = point[r]
        gains_IC = _relative_gain(short_SC, long_SIC)[0]
        sampled_SIC = np.concatenate(samples[r]) if bootstrap else gains_IC[None]
        for i, name in enumerate(losses):
            limit = (limits or {}).get(name)
            value, at_least = _first_below(gains_IC[None, i], contexts, threshold, limit)
            values_S, at_least_S = _first_below(sampled_SIC[:, i], contexts, threshold, limit)
            # Use observed values, not interpolations: RECL is always a context of the grid.
            ends = [(1 - INTERVAL) / 2, (1 + INTERVAL) / 2]
            low, high = np.quantile(values_S, ends, method="inverted_cdf")
            results[name][r] = EffectiveContext(
                value=int(value[0]),
                at_least=bool(at_least[0]),
                low=int(low),
                high=int(high),
                high_at_least=bool(at_least_S[values_S >= high].any()),
                limit=limit,
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


def _hardest(losses_P: Array, fraction: float, counts_SP: Array) -> Array:
    """Return T, the fraction r of positions with the largest losses, as weights [S, P] with sum 1.

    T has r·n of a sample's n positions, rounded (halves up), at least one. Positions that tie for the last places
    share them equally; the order of positions does not matter.

    Args:
        losses_P: b(c, t).
        fraction: r.
        counts_SP: count of each position in each sample.
    """
    size_S1 = np.maximum(1, np.floor(fraction * counts_SP.sum(axis=1, keepdims=True) + 0.5))
    order = np.argsort(-losses_P, kind="stable")
    sorted_P = losses_P[order]
    is_first = np.concatenate([[True], sorted_P[1:] != sorted_P[:-1]])
    tie_P = np.cumsum(is_first) - 1
    counts = counts_SP[:, order]
    totals = np.add.reduceat(counts, np.flatnonzero(is_first), axis=1)
    taken = np.clip(size_S1 - (np.cumsum(totals, axis=1) - totals), 0, totals)
    shares = taken / np.maximum(totals, 1)
    weights_SP = np.empty_like(counts)
    weights_SP[:, order] = counts * shares[:, tie_P] / size_S1
    return weights_SP


def _mean_losses(losses_ICP: Array, fraction: float, counts_SP: Array) -> tuple[Array, Array]:
    """Return f(c, c), [S, C-1], common to all models, and f_i(c, c'), [S, I, C-1], in nats."""
    I, C, _ = losses_ICP.shape  # noqa: E741
    short_SC = np.empty((len(counts_SP), C - 1))
    long_SIC = np.empty((len(counts_SP), I, C - 1))
    for c in range(C - 1):
        best_P = losses_ICP[:, c].min(axis=0)
        weights_SP = _hardest(best_P, fraction, counts_SP)
        short_SC[:, c] = weights_SP @ best_P
        for i in range(I):  # one model at a time: rounding must not depend on the rest of the group
            long_SIC[:, i, c] = weights_SP @ np.minimum(best_P, losses_ICP[i, c + 1])
    return short_SC, long_SIC


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


def resampled(blocks: NDArray[np.int64], n_samples: int, seed: int) -> Iterator[Array]:
    """Yield the counts [S, P] of P positions whose blocks are drawn with replacement, for some samples at a time."""
    generator = np.random.default_rng(seed)
    at_once = max(1, SAMPLED_AT_ONCE // len(blocks))
    names, block_P = np.unique(blocks, return_inverse=True)
    evenly = np.full(len(names), 1 / len(names))
    for start in range(0, n_samples, at_once):
        drawn = generator.multinomial(len(names), evenly, size=min(at_once, n_samples - start))
        yield drawn[:, block_P].astype(np.float64)
