"""Claims: one rule for a difference, and the committed runs by that rule."""

from dataclasses import replace

import pytest

from experiments.claims import CLAIMS, judge, mark
from experiments.report.readme import committed
from experiments.sections import Difference, Section

ROW = Difference(
    "recurrence_helps/init",
    "off − on",
    "bpc",
    effect=0.1,
    low=0.04,
    high=0.15,
)


@pytest.mark.parametrize(
    ("low", "high", "sign"),
    [
        (0.001, 0.2, "✓"),
        (-0.001, 0.2, "≈"),
        (-0.2, 0.001, "≈"),
        (-0.2, -0.001, "✗"),
        (0.01, None, "✓"),
        (None, 0.01, "≈"),
        (-0.01, None, "≈"),
        (None, -0.01, "✗"),
        (None, None, "–"),
    ],
)
def test_the_mark_is_where_the_interval_lies(
    low: float | None, high: float | None, sign: str
) -> None:
    assert mark(replace(ROW, low=low, high=high)) == sign


def test_what_has_no_effect_or_says_nothing_cannot_be_told() -> None:
    assert mark(Difference("a/b", "to come")) == "–"
    assert mark(replace(ROW, untested="Nothing new.")) == "–"


def test_a_claim_has_the_differences_whose_keys_begin_with_it() -> None:
    best = replace(
        ROW,
        key="recurrence_helps_at_the_best_lengths/best",
        low=-0.2,
        high=-0.1,
    )
    section = Section("table_6", "Table 6", "here", differences=[ROW, best])
    claims = judge([section])
    assert [claim["id"] for claim in claims] == [claim["id"] for claim in CLAIMS]
    assert [row["mark"] for row in claims[0]["rows"]] == ["✓"]
    assert [row["key"] for row in claims[1]["rows"]] == [best.key]
    assert claims[2]["rows"] == []


def test_the_committed_runs_are_marked_by_the_rule_of_today() -> None:
    for results in committed():
        assert [claim["id"] for claim in results["claims"]] == [claim["id"] for claim in CLAIMS]
        for claim in results["claims"]:
            for row in claim["rows"]:
                fields = {name: value for name, value in row.items() if name != "mark"}
                assert mark(Difference(**fields)) == row["mark"], row["key"]
