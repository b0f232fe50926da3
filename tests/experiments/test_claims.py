"""Claims: one rule for a difference, and the committed run by that rule."""

import json
from dataclasses import replace

import pytest

from experiments.claims import CLAIMS, judged, mark
from experiments.sections import Difference, Section
from tests.docs.pages import ROOT

ROW = Difference("recurrence_helps/init", "off − on", "bpc", 0.1, 0.04, 0.15, 4.0, 2.0, 6.5, 2.7)


@pytest.mark.parametrize(
    ("low", "high", "sign"),
    [
        *((0.001, 0.2, "✓"), (-0.001, 0.2, "≈"), (-0.2, 0.001, "≈"), (-0.2, -0.001, "✗")),
        *((0.01, None, "✓"), (None, 0.01, "≈"), (-0.01, None, "≈"), (None, -0.01, "✗"), (None, None, "–")),
    ],
)
def test_the_mark_is_where_the_interval_lies(low: float | None, high: float | None, sign: str) -> None:
    assert mark(replace(ROW, low=low, high=high)) == sign


def test_what_has_no_effect_or_says_nothing_cannot_be_told() -> None:
    assert mark(Difference("a/b", "to come")) == mark(replace(ROW, untested="Nothing new.")) == "–"


def test_a_claim_has_the_differences_whose_keys_begin_with_it() -> None:
    other = replace(ROW, key="recurrence_helps_at_the_best_lengths/best", low=-0.2, high=-0.1)
    found = judged([Section("table_6", "Table 6", "paper", "here", differences=(ROW, other, replace(ROW, key="x/y")))])
    assert [claim["id"] for claim in found] == [claim["id"] for claim in CLAIMS]
    assert [[(row["key"], row["mark"]) for row in claim["rows"]] for claim in found[:3]] == [
        [("recurrence_helps/init", "✓")],
        [("recurrence_helps_at_the_best_lengths/best", "✗")],
        [],
    ]


def test_the_committed_run_is_marked_by_the_rule_of_today() -> None:
    results = json.loads((ROOT / "experiments/results/laptop/results.json").read_text())
    assert [claim["id"] for claim in results["claims"]] == [claim["id"] for claim in CLAIMS]
    for row in (row for claim in results["claims"] for row in claim["rows"]):
        fields = {name: value for name, value in row.items() if name != "mark"}
        assert mark(Difference(**fields)) == row["mark"], row["key"]
