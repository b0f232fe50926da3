"""RECL on losses that are made up: against a plain reading of appendix C, oracles, and what must not matter."""

import math
from fractions import Fraction
from itertools import pairwise
from math import fsum

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txl_lightning.errors import OptionError
from txl_lightning.recl.effective_context import relative_effective_context_lengths, resampled

Plain = dict[str, list[list[float]]]


def by_the_paper(losses: Plain, contexts: list[int], r: float, threshold: float, model: str) -> int | None:
    """Appendix C in plain Python, one position after the other; None where the grid ends before the gains do."""
    n = len(losses[model][0])
    size = max(1, math.floor(Fraction(str(r)) * n + Fraction(1, 2)))
    c = 0
    while c + 1 < len(contexts):
        b = [min(of_model[c][t] for of_model in losses.values()) for t in range(n)]
        T = sorted(range(n), key=lambda t: b[t], reverse=True)[:size]
        f_short = sum(min(b[t], losses[model][c][t]) for t in T) / size
        f_long = sum(min(b[t], losses[model][c + 1][t]) for t in T) / size
        if (math.exp(f_short) - math.exp(f_long)) / math.exp(f_short) < threshold:
            return contexts[c]
        c += 1
    return None


def where_its_mean_rises(losses: Plain, contexts: list[int], r: float, model: str) -> list[int]:
    """Contexts at which the mean does not fall, over all positions or over the hardest of the contexts before."""
    n, found = len(losses[model][0]), []
    for c, (short, long) in enumerate(pairwise(losses[model])):
        before = [fsum(min(of[i][t] for of in losses.values()) for i in range(c)) for t in range(n)]
        size = max(1, math.floor(Fraction(str(r)) * n + Fraction(1, 2))) if c else n
        hard = sorted(range(n), key=lambda t: before[t], reverse=True)[:size]
        if any(fsum(long[t] for t in T) >= fsum(short[t] for t in T) for T in (range(n), hard)):
            found.append(contexts[c])
    return found


SHAPES = st.tuples(st.integers(1, 4), st.integers(2, 7), st.integers(1, 200))  # models, contexts, positions
FRACTIONS, THRESHOLDS = st.sampled_from([0.03, 0.1, 0.5, 0.77, 1.0]), st.sampled_from([0.001, 0.01, 0.05, 0.3])


@settings(max_examples=60)
@given(st.integers(0, 10**6), SHAPES, st.integers(1, 50), st.integers(1, 100), FRACTIONS, THRESHOLDS)
def test_appendix_c(seed: int, shape: tuple[int, ...], first: int, step: int, r: float, threshold: float) -> None:
    generator, (n_models, n_contexts, _) = np.random.default_rng(seed), shape
    falling = 4.0 * 0.5 ** np.arange(n_contexts)[None, :, None]
    losses_ICP = generator.gamma(2.0, 1.0, shape) * generator.choice([0.1, 1.0], shape) + falling
    losses = {f"m{i}": losses_ICP[i] for i in range(n_models)}
    plain = {name: of_model.tolist() for name, of_model in losses.items()}
    contexts = [first + step * i for i in range(n_contexts)]
    ours = relative_effective_context_lengths(losses, contexts, [r], threshold, bootstrap=3)
    for name in losses:
        found, expected = ours[name][r], by_the_paper(plain, contexts, r, threshold, name)
        assert (found.value, found.at_least) == (expected or contexts[-1], expected is None)
        ends = [c for c in (expected, *where_its_mean_rises(plain, contexts, r, name)) if c is not None]
        assert (found.guarded, found.guarded_at_least) == (min(ends, default=contexts[-1]), not ends)


def test_fluctuating_losses_lengthen_recl_but_not_guarded_recl() -> None:
    """At odd steps one half of the positions gains and the other loses more, at even steps the reverse."""
    steps, first_half = np.arange(6)[:, None], np.arange(100) < 50
    worse = 2 + 0.1 * steps + np.where((steps % 2 == 1) == first_half, 0.5, 0.0)
    falling, contexts = 3 - 0.1 * steps + np.zeros(100), [10, 20, 30, 40, 50, 60]
    found = relative_effective_context_lengths({"worse": worse, "falling": falling}, contexts, [1.0], bootstrap=0)
    assert (found["worse"][1.0].value, found["worse"][1.0].guarded) == (60, 10)
    alone = relative_effective_context_lengths({"m": falling}, contexts, [0.1, 1.0], bootstrap=0)["m"]
    assert {(of.guarded, of.guarded_at_least) for of in alone.values()} == {(60, True)}
    equal = np.array([[3.0], [2.0], [2.0]]) + np.zeros(50)
    capped = relative_effective_context_lengths({"m": equal}, [10, 20, 30], [1.0], limits={"m": 15}, bootstrap=0)
    assert (capped["m"][1.0].guarded, capped["m"][1.0].guarded_at_least) == (15, False)


LATER = np.array([[2.0], [2.0], [0.1], [0.1]]) + np.zeros(50)  # later steps do not matter after a step without gain
FALLING = np.array([[3.0], [2.0], [1.0]]) + np.zeros(50)
SECOND = np.array([[3.0], [2.0], [2.0], [2.0]]) + np.zeros(400)
# By 1 % in a hundredth of samples.
RARELY = SECOND[:3] - np.outer([0, 0, 1], np.arange(400) < 100) * 0.01005 / 120 * 400


ENDS = [
    (LATER, None, (10, False, 10, False)),
    (FALLING, None, (30, True, 30, True)),
    (RARELY, None, (20, False, 20, False)),
    (SECOND, None, (20, False, 20, False)),
    (SECOND, 15, (15, False, 15, False)),  # what the model sees
    (SECOND[:2], 15, (15, False, 15, False)),
]


@pytest.mark.parametrize(("losses", "limit", "expected"), ENDS)
def test_where_the_gains_end(losses: np.ndarray, limit: int | None, expected: tuple[int, bool, int, bool]) -> None:
    contexts = [10, 20, 30, 40][: len(losses)]
    length = relative_effective_context_lengths({"m": losses}, contexts, [1.0], limits={"m": limit})["m"][1.0]
    assert (length.value, length.at_least, length.high, length.high_at_least) == expected
    assert length.limit == limit


def group(n_models: int = 3, n_contexts: int = 5, n_positions: int = 101) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(5)
    falling = 3.0 * 0.6 ** np.arange(n_contexts)[None, :, None]
    losses = generator.gamma(2.0, 1.0, (n_models, n_contexts, n_positions)) + falling
    return {f"m{i}": losses[i] for i in range(n_models)}


CONTEXTS = [10, 20, 30, 40, 50]


def test_positions_that_tie_for_the_last_places_share_them() -> None:
    losses = np.array([[5.0, 1.0, 1.0, 1.0], [5.0, 1.0, 0.0, 0.5]])
    length = relative_effective_context_lengths({"m": losses}, [1, 2], [0.5], bootstrap=0)["m"][0.5]
    short, long = math.exp((5 + 1) / 2), math.exp((5 + (1 + 0 + 0.5) / 3) / 2)  # the 5, and a third of each of three
    assert length.perplexities == pytest.approx([short])
    assert length.perplexity_gains == pytest.approx([short - long])
    assert length.relative_gains == pytest.approx([1 - long / short])


def test_resampled_blocks_keep_their_positions_together() -> None:
    blocks = np.repeat(range(9), [60, 10, 40, 20, 30, 50, 15, 35, 40])
    counts_SP = np.concatenate(list(resampled(9, 50, seed=2)))[:, blocks]
    losses = group(n_models=2, n_positions=300)
    ours = relative_effective_context_lengths(losses, CONTEXTS, [0.3], 0.6, bootstrap=50, seed=2, blocks=blocks)
    values: dict[str, list[int]] = {"m0": [], "m1": []}
    for counts in counts_SP.astype(int):
        drawn = {name: np.repeat(x, counts, axis=1).tolist() for name, x in losses.items()}
        for name in losses:
            values[name].append(by_the_paper(drawn, CONTEXTS, 0.3, 0.6, name) or CONTEXTS[-1])

    for name, of_samples in values.items():
        ends = np.quantile(of_samples, [0.025, 0.975], method="inverted_cdf").tolist()
        assert [ours[name][0.3].low, ours[name][0.3].high] == ends
    assert len(set(values["m0"])) > 1


def test_guarded_recl_has_the_interval_of_resampled_blocks() -> None:
    """Each sample read as a text of its own."""
    blocks = np.repeat(range(30), 10)
    losses = {"m": group(n_models=1, n_positions=300)["m0"]}
    ours = relative_effective_context_lengths(losses, CONTEXTS, [0.3, 1.0], 0.05, bootstrap=40, seed=2, blocks=blocks)
    samples = np.concatenate(list(resampled(30, 40, seed=2)))[:, blocks].astype(int)
    for r in (0.3, 1.0):
        lengths = []
        for counts in samples:
            sample = {"m": np.repeat(losses["m"], counts, axis=1)}
            found = relative_effective_context_lengths(sample, CONTEXTS, [r], 0.05, bootstrap=0)
            lengths.append(found["m"][r].guarded)
        low, high = np.quantile(lengths, [0.025, 0.975], method="inverted_cdf").tolist()
        assert (ours["m"][r].guarded_low, ours["m"][r].guarded_high) == (low, high)
        assert low < high


def test_guarded_recl_of_an_exact_model_may_be_much_shorter_than_recl() -> None:
    """Without any noise: each token repeats one of 256 before it, near ones more often."""
    generator = np.random.default_rng(0)
    distances = np.arange(1, 257)
    weights = distances**-1.5 / (distances**-1.5).sum()
    text = generator.integers(64, size=256).tolist()
    for distance in generator.choice(distances, p=weights, size=2000):
        text.append(text[-int(distance)])
    positions = np.arange(256, len(text))
    repeats = np.array(text)[positions[:, None] - distances] == np.array(text)[positions, None]
    contexts = list(range(16, 257, 16))
    losses = []
    for c in contexts:
        probabilities = (repeats * weights)[:, :c].sum(axis=1) + weights[c:].sum() / 64
        losses.append(-np.log(probabilities))
    found = relative_effective_context_lengths({"exact": np.array(losses)}, contexts, [0.1, 1.0], bootstrap=0)["exact"]
    assert (found[0.1].value, found[0.1].guarded) == (192, 64)
    assert (found[1.0].value, found[1.0].guarded) == (80, 80)


def test_a_plateau_says_where_steps_gain_again() -> None:
    contexts = [10, 20, 30, 40]
    plateau = relative_effective_context_lengths({"m": LATER}, contexts, [1.0], bootstrap=0)["m"][1.0]
    assert (plateau.value, plateau.gains_again) == (10, 30)
    falling = relative_effective_context_lengths({"m": FALLING}, contexts[:3], [1.0], bootstrap=0)["m"][1.0]
    assert falling.gains_again is None


IMPOSSIBLE = [
    ({"contexts": [10, 20, 40, 40, 60]}, "contexts=.*ascending"),
    ({"fractions": [0.0]}, r"fractions=\[0.0\]"),
    ({"fractions": [0.5, 0.5]}, "fractions=.*different"),
    ({"threshold": 1.0}, "threshold=1.0"),
    ({"blocks": np.arange(100)}, "blocks=.*must be 101"),
    ({"losses": {"m": np.full((5, 3), np.nan)}}, "must be finite"),
]


@pytest.mark.parametrize(("options", "words"), IMPOSSIBLE)
def test_impossible_options_of_recl_are_named(options: dict, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        relative_effective_context_lengths(**{"losses": group(), "contexts": CONTEXTS, **options})
