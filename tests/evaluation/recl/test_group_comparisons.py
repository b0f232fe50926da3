"""Comparisons: differences paired by block, groups of their own, groups without one model."""

import numpy as np

from txl_lightning.evaluation.recl.effective_context import relative_effective_context_lengths
from txl_lightning.evaluation.recl.group_comparisons import (
    group_summaries,
    lengths_in_groups,
    lengths_without_one,
    loss_differences,
)

CONTEXTS = [4, 8, 12, 16, 20]
BLOCKS = np.repeat(np.arange(40), 10)


def decaying(seed: int, length: float) -> np.ndarray:
    """Losses that fall towards 2 with contexts, with noise common to blocks."""
    random = np.random.default_rng(seed)
    curve = 2 + 2 * np.exp(-np.array(CONTEXTS) / length)
    return curve[:, None] + random.normal(0, 0.05, (5, 400)) + np.random.default_rng(99).normal(0, 1, 40)[BLOCKS]


LOSSES = {"a": decaying(0, 3), "b": decaying(1, 6), "c": decaying(2, 12)}
DEFINITION = {"fractions": [0.5, 1.0], "bootstrap": 20, "blocks": BLOCKS}


def test_models_of_one_label_form_a_group_of_their_own() -> None:
    labels = {"a": "x", "b": "y", "c": "x"}
    ours = lengths_in_groups(LOSSES, CONTEXTS, labels, **DEFINITION)
    of_x = relative_effective_context_lengths({n: LOSSES[n] for n in "ac"}, CONTEXTS, **DEFINITION)
    of_y = relative_effective_context_lengths({"b": LOSSES["b"]}, CONTEXTS, **DEFINITION)
    assert ours == of_x | of_y
    assert set(ours["a"][1.0].longer_than) == {"c"}


def test_the_group_without_each_other_model() -> None:
    ours = lengths_without_one(LOSSES, CONTEXTS, dict.fromkeys("abc", "all"), **DEFINITION)
    assert {name: set(found) for name, found in ours.items()} == {"a": {"b", "c"}, "b": {"a", "c"}, "c": {"a", "b"}}
    pair = relative_effective_context_lengths({n: LOSSES[n] for n in "ac"}, CONTEXTS, **{**DEFINITION, "bootstrap": 0})
    assert ours["a"]["b"] == pair["a"]
    assert ours["c"]["b"] == pair["c"]
    assert lengths_without_one(LOSSES, CONTEXTS, {"a": "x", "b": "y", "c": "z"}, **DEFINITION) == {n: {} for n in "abc"}


def test_differences_are_paired_by_position() -> None:
    differences = loss_differences(LOSSES, BLOCKS)
    assert [(d["model"], d["minus"]) for d in differences] == [("a", "b"), ("a", "c"), ("b", "c")]
    first = differences[0]
    np.testing.assert_allclose(first["nll"], (LOSSES["a"] - LOSSES["b"]).mean(axis=1))
    # The blocks' common noise of 1 / √40 = 0.16 cancels.
    assert max(first["nll_standard_error"]) < 0.01
    assert first["low"][0] < first["nll"][0] < first["high"][0] < 0


def test_intervals_of_differences_cover_the_truth() -> None:
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        own = random.normal(0, 1, (2, 1, 40))[..., BLOCKS] + random.normal(0, 1, (2, 1, 400))
        (difference,) = loss_differences({"a": own[0], "b": own[1] + 0.3}, BLOCKS)
        covered += difference["low"][0] <= -0.3 <= difference["high"][0]
    assert 0.92 <= covered / 400 <= 0.97


def test_a_group_has_the_mean_and_the_range_of_its_models() -> None:
    labels = {"a": "x", "b": "x", "c": "y"}
    lengths = lengths_in_groups(LOSSES, CONTEXTS, labels, **DEFINITION)
    x, y = group_summaries(lengths, LOSSES, labels)
    values = [lengths[name][1.0].value for name in "ab"]
    at_least = any(lengths[name][1.0].at_least for name in "ab")
    assert x["recl"]["1.0"] == {"mean": sum(values) / 2, "low": min(values), "high": max(values), "at_least": at_least}
    means = np.array([LOSSES[name].mean(axis=1) for name in "ab"])
    np.testing.assert_allclose(x["nll"], means.mean(axis=0))
    np.testing.assert_allclose(x["nll_standard_error_over_models"], np.abs(means[0] - means[1]) / 2)
    assert (y["models"], y["nll_standard_error_over_models"]) == (["c"], None)
