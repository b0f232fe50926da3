"""Differences of effective context lengths: what lies beyond the grid, and what the grid cannot show."""

import pytest

from experiments.claims import judged
from experiments.report.sections import Section
from experiments.tables.comparisons import comparisons_table
from experiments.tables.table_8 import differences


@pytest.mark.parametrize(
    ("lengths", "beyond", "ends", "mark"),
    [
        ((192, 64), (False, False), (96, 160), "holds"),
        ((320, 64), (True, False), (224, None), "holds"),
        ((192, 320), (False, True), (None, -96), "does not hold"),
        ((320, 320), (True, True), (None, None), "within noise"),
        ((320, 320), (True, False), (-32, None), "within noise"),
    ],
)
def test_a_length_beyond_the_grid_leaves_its_side_open(
    lengths: tuple[int, int], beyond: tuple[bool, bool], ends: tuple[int | None, int | None], mark: str
) -> None:
    """Two models of group 1 on a grid with steps of 32; the difference varies by a step."""
    between = {"QRNN": [lengths[0] - lengths[1] - 32, lengths[0] - lengths[1] + 32]}
    models = [
        {"name": name, "recl": {"0.1": {"value": value, "high_at_least": far, "longer_than": longer}}}
        for name, value, far, longer in zip(("Transformer-XL", "QRNN"), lengths, beyond, (between, {}), strict=True)
    ]
    (found,) = differences({1: {"step": 32, "models": models}})
    assert (found.difference.low, found.difference.high, found.step) == (*ends, 32)
    table = comparisons_table("table_8", "Table 8", "tokens", 0, [found])
    claims = judged([Section("table_8", "Table 8", "paper", "here", (table,))])
    assert [claim["mark"] for claim in claims if claim["id"] == "recl_order"] == [mark]
