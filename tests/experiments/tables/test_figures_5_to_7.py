"""Shapes of attention by relative position."""

import numpy as np
import pytest

from experiments.tables import figures_5_to_7


def test_d_has_to_be_flatter_than_b_not_than_all_terms() -> None:
    def falling(rate: float) -> np.ndarray:
        return np.exp(-rate * np.arange(40)) * np.random.default_rng(1).uniform(0.9, 1.1, (6, 40))

    def d_flatter(**rates: float) -> float:
        found = {c.key: c.difference for c in figures_5_to_7.differences({n: falling(r) for n, r in rates.items()})}
        low, high = found["terms_look_as_described/d_flatter"].low, found["terms_look_as_described/d_flatter"].high
        assert low is not None
        assert high is not None
        assert low * high > 0
        return low

    assert d_flatter(all=0.3, a=0.0, b=0.1, d=0.2) < 0  # flatter than all terms, not than (b)
    assert d_flatter(all=0.05, a=0.0, b=0.2, d=0.1) > 0  # flatter than (b), not than all terms


def test_shapes_of_known_rows() -> None:
    uniform, first = np.full((1, 5), 0.1), np.array([[0.4, 0.0, 0.0, 0.0, 0.0]])  # rows need not sum to 1
    rows = figures_5_to_7.shares(np.concatenate([uniform, first]))
    assert rows.sum(axis=1) == pytest.approx([1, 1])
    assert figures_5_to_7.flatness(rows) == pytest.approx([1, 0])
    assert figures_5_to_7.mean_distance(rows) == pytest.approx([2, 0])
    table = figures_5_to_7.shape_table({"all": first, "a": uniform, "b": first, "d": uniform})
    assert table.number("b", "unlike").value == pytest.approx(0)
    assert table.number("a", "unlike").value == pytest.approx(0.8)
