"""Cells of the report."""

import numpy as np
import pytest

from experiments.report.cells import over_seeds


def test_a_mean_over_seeds_has_the_standard_error_of_the_mean() -> None:
    cell = over_seeds({1: 1.0, 2: 2.0, 3: 3.0, 4: 6.0}, 3)
    values = np.array([1.0, 2.0, 3.0, 6.0])
    assert cell.value == pytest.approx(values.mean())
    assert cell.standard_error == pytest.approx(values.std(ddof=1) / 2)
    assert cell.by_seed == {"1": 1.0, "2": 2.0, "3": 3.0, "4": 6.0}
    assert over_seeds({1: 1.0}, 3).standard_error is None
