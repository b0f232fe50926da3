"""RECL on losses that are made up: a plain reading of appendix C, and what must not matter."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txl_lightning.errors import OptionError
from txl_lightning.recl.effective_context import relative_effective_context_lengths, resampled

CONTEXTS = [10, 20, 30, 40, 50]


def hard_places(losses_P: np.ndarray, r: float) -> np.ndarray:
    """The fraction r of the positions with the largest losses."""
    size = math.floor(Fraction(str(r)) * len(losses_P) + Fraction(1, 2))
    return np.argsort(-losses_P)[: max(1, size)]


def plain_lengths(
    losses: dict[str, np.ndarray],
    contexts: list[int],
    r: float,
    threshold: float,
    model: str,
) -> tuple[int, int]:
    """RECL and guarded RECL, step by step from the longest context; the longest if gains do not end."""
    best_CP = np.min(
        [*losses.values()],
        axis=0,
    )
    recl = contexts[-1]
    guarded = contexts[-1]
    for c in reversed(range(len(contexts) - 1)):
        longer_P = losses[model][c + 1]
        hard = hard_places(best_CP[c], r)
        f_short = best_CP[c][hard].mean()
        f_long = np.minimum(best_CP[c], longer_P)[hard].mean()
        gain = (math.exp(f_short) - math.exp(f_long)) / math.exp(f_short)
        changes_P = longer_P - losses[model][c]
        hard_before = hard_places(
            best_CP[:c].sum(axis=0),
            r if c > 0 else 1.0,
        )
        rises = changes_P.mean() >= 0 or changes_P[hard_before].mean() >= 0
        if gain < threshold:
            recl = contexts[c]
        if gain < threshold or rises:
            guarded = contexts[c]
    return recl, guarded


SHAPES = st.tuples(
    st.integers(1, 4),
    st.integers(2, 7),
    st.integers(1, 200),
)
GRIDS = st.tuples(
    st.integers(1, 50),
    st.integers(1, 100),
)
FRACTIONS = st.sampled_from([0.03, 0.1, 0.5, 0.77, 1.0])
THRESHOLDS = st.sampled_from([0.001, 0.01, 0.05, 0.3])


@settings(max_examples=40)
@given(
    st.integers(0, 10**6),
    SHAPES,
    GRIDS,
    FRACTIONS,
    THRESHOLDS,
)
def test_appendix_c(seed, shape, grid, r, threshold):
    """Shapes are models, contexts, positions."""
    n_models, n_contexts, _ = shape
    generator = np.random.default_rng(seed)
    scale = generator.choice([0.1, 1.0], shape)
    falling = 4.0 * 0.5 ** np.arange(n_contexts)[None, :, None]
    losses_ICP = generator.gamma(2.0, 1.0, shape) * scale + falling
    losses = {f"m{i}": losses_ICP[i] for i in range(n_models)}
    first, step = grid
    contexts = [first + step * i for i in range(n_contexts)]
    ours = relative_effective_context_lengths(losses, contexts, [r], threshold, bootstrap=3)
    for name in losses:
        length = ours[name][r]
        recl, guarded = plain_lengths(losses, contexts, r, threshold, name)
        assert (length.value, length.guarded) == (recl, guarded)
        assert length.at_least == (recl == contexts[-1])
        assert length.guarded_at_least == (guarded == contexts[-1])


def constant(*losses: float) -> np.ndarray:
    """Losses by context, equal at 50 positions."""
    return np.tile(
        np.array(losses)[:, None],
        50,
    )


ENDS = [
    (constant(2.0, 2.0, 0.1, 0.1), None, (10, False), 30),  # a plateau; later steps gain again
    (constant(3.0, 2.0, 1.0), None, (30, True), None),
    (constant(3.0, 2.0, 2.0, 2.0), None, (20, False), None),
    (constant(3.0, 2.0, 2.0, 2.0), 15, (15, False), None),  # what the model sees
]


@pytest.mark.parametrize(("losses", "limit", "expected", "gains_again"), ENDS)
def test_where_the_gains_end(losses, limit, expected, gains_again):
    contexts = CONTEXTS[: len(losses)]
    limits = {"m": limit}
    found = relative_effective_context_lengths(
        {"m": losses},
        contexts,
        [1.0],
        limits=limits,
    )
    length = found["m"][1.0]
    assert (length.value, length.at_least) == expected
    assert length.high == length.guarded_high == length.value
    assert (length.guarded, length.guarded_at_least) == expected
    assert length.gains_again == gains_again


def test_positions_that_tie_for_the_last_places_share_them():
    """T has the 5, and a third of each of three."""
    losses = {"m": np.array([[5.0, 1.0, 1.0, 1.0], [5.0, 1.0, 0.0, 0.5]])}
    found = relative_effective_context_lengths(
        losses,
        [1, 2],
        [0.5],
        bootstrap=0,
    )
    length = found["m"][0.5]
    short = math.exp((5 + 1) / 2)
    long = math.exp((5 + (1 + 0 + 0.5) / 3) / 2)
    assert length.perplexities == pytest.approx([short])
    assert length.perplexity_gains == pytest.approx([short - long])
    assert length.relative_gains == pytest.approx([1 - long / short])


def group(n_models: int = 3, n_positions: int = 101) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(5)
    falling = 3.0 * 0.6 ** np.arange(5)[None, :, None]
    losses = generator.gamma(2.0, 1.0, (n_models, 5, n_positions)) + falling
    return {f"m{i}": losses[i] for i in range(n_models)}


@pytest.mark.parametrize(
    ("threshold", "n_models"),
    [(0.6, 2), (0.05, 1)],
)
def test_intervals_are_of_resampled_blocks_each_read_as_a_text(threshold, n_models):
    """RECL varies at the first threshold, its guarded value at the second."""
    blocks = np.repeat(
        range(9),
        [60, 10, 40, 20, 30, 50, 15, 35, 40],
    )
    losses = group(n_models, n_positions=300)
    if n_models == 1:
        losses["m0"][3] += 0.4

    def measured(group, **options):
        found = relative_effective_context_lengths(group, CONTEXTS, [0.3], threshold, **options)
        return found["m0"][0.3]

    lengths = []
    for counts_B in resampled(9, 50, seed=2).astype(int):
        sample = {name: np.repeat(x, counts_B[blocks], axis=1) for name, x in losses.items()}
        found = measured(sample, bootstrap=0)
        lengths.append([found.value, found.guarded])
    length = measured(losses, bootstrap=50, seed=2, blocks=blocks)
    quantiles = np.quantile(
        lengths,
        [0.025, 0.975],
        axis=0,
        method="inverted_cdf",
    )
    low, high = quantiles.tolist()
    assert [length.low, length.guarded_low] == low
    assert [length.high, length.guarded_high] == high
    assert low != high


def test_guarded_recl_of_an_exact_model_may_be_much_shorter_than_recl():
    """Without any noise: a token repeats one of 256 before it, near ones more often."""
    generator = np.random.default_rng(0)
    distances = np.arange(1, 257)
    weights = distances**-1.5
    weights /= weights.sum()
    text = generator.integers(64, size=256).tolist()
    for distance in generator.choice(distances, p=weights, size=2000):
        text.append(text[-int(distance)])
    tokens = np.array(text)
    places = np.arange(256, len(text))[:, None]
    repeats = tokens[places - distances] == tokens[places]
    contexts = list(range(16, 257, 16))
    losses = []
    for c in contexts:
        seen = (repeats[:, :c] * weights[:c]).sum(axis=1)
        losses.append(-np.log(seen + weights[c:].sum() / 64))
    exact = {"exact": np.array(losses)}
    found = relative_effective_context_lengths(exact, contexts, [0.1, 1.0], bootstrap=0)
    lengths = [(length.value, length.guarded) for length in found["exact"].values()]
    assert lengths == [(192, 64), (80, 80)]


IMPOSSIBLE = [
    ({"contexts": [10, 20, 40, 40, 60]}, "contexts=.*ascending"),
    ({"fractions": [0.5, 1.5]}, r"fractions=.*\(0, 1"),
    ({"threshold": 1.0}, "threshold=1.0"),
    (
        {"losses": {"m": np.full((5, 3), np.nan)}},
        "must be finite",
    ),
]


@pytest.mark.parametrize(("options", "words"), IMPOSSIBLE)
def test_impossible_options_of_recl_are_named(options, words):
    given_options = {"losses": group(), "contexts": CONTEXTS, **options}
    with pytest.raises(OptionError, match=words):
        relative_effective_context_lengths(**given_options)
