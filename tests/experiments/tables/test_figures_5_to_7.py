"""Shapes of attention by relative position."""

import numpy as np
import pytest

from experiments.tables import figures_5_to_7


def test_shapes_of_known_rows() -> None:
    uniform, first = np.full((1, 5), 0.1), np.array([[0.4, 0.0, 0.0, 0.0, 0.0]])  # rows need not sum to 1
    rows = figures_5_to_7.shares(np.concatenate([uniform, first]))
    assert rows.sum(axis=1) == pytest.approx([1, 1])
    assert figures_5_to_7.flatness(rows) == pytest.approx([1, 0])
    assert figures_5_to_7.mean_distance(rows) == pytest.approx([2, 0])
    table = figures_5_to_7.shape_table({"all": first, "a": uniform, "b": first, "d": uniform})
    assert table.number("b", "unlike").value == pytest.approx(0)
    assert table.number("a", "unlike").value == pytest.approx(0.8)
