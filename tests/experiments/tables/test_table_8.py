"""Differences of effective context lengths: what lies beyond the grid, and what the grid cannot show."""

from __future__ import annotations

from typing import Any

import pytest

from experiments.claims import judged
from experiments.report.sections import Section
from experiments.tables.comparisons import comparisons_table
from experiments.tables.table_8 import differences

OURS, OTHER = "Transformer-XL", "QRNN"


def results(
    ours: int, other: int, *, ours_beyond: bool = False, other_beyond: bool = False
) -> dict[int, dict[str, Any]]:
    """Lengths of two models of group 1 on a grid with steps of 32; the difference varies by a step."""
    ends = [ours - other - 32, ours - other + 32]
    models = [
        {"name": name, "recl": {"0.1": {"value": value, "high_at_least": beyond, "longer_than": longer_than}}}
        for name, value, beyond, longer_than in (
            (OURS, ours, ours_beyond, {OTHER: ends}),
            (OTHER, other, other_beyond, {}),
        )
    ]
    return {1: {"step": 32, "models": models}}


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
    found = differences(results(*lengths, ours_beyond=beyond[0], other_beyond=beyond[1]))
    assert (found[0].difference.low, found[0].difference.high) == ends
    table = comparisons_table("table_8", "Table 8", "tokens", 0, found)
    claims = judged([Section("table_8", "Table 8", "paper", "here", (table,))])
    assert [claim["mark"] for claim in claims if claim["id"] == "recl_order"] == [mark]


def test_a_difference_of_lengths_has_the_step_of_their_grid() -> None:
    found = differences(results(192, 64))
    assert found[0].step == 32
    assert comparisons_table("table_8", "Table 8", "tokens", 0, found).number(found[0].key, "difference").step == 32
