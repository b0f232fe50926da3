"""Marks of the paper's claims: recomputed from the tables, by one rule."""

import json
from dataclasses import replace

import pytest

from experiments import claims
from experiments.claims import ClaimPart, mark_of, shown, verdict
from experiments.report.sections import Number, Section
from experiments.tables.comparisons import Comparison, comparisons_table, percent_of_loss
from experiments.tables.intervals import Interval
from tests.experiments.report.written import ROOT, read_sections


def part(low: float, high: float, title: str = "a − b", paper: float | None = 1.5) -> ClaimPart:
    """A difference in bpc, ten times as large in percent; `paper` in percent."""
    middle = (low + high) / 2
    relative = Number(10 * middle, 1, low=10 * low, high=10 * high)
    return ClaimPart(title, Number(middle, 3, low=low, high=high), relative, paper, "bpc")


@pytest.mark.parametrize(
    ("low", "high", "paper", "mark"),
    [
        (0.001, 0.2, 1.5, "holds"),
        (0.001, 0.002, 1.5, "holds"),
        (-0.001, 0.2, 1.5, "within noise"),
        (-0.001, 0.0751, 1.5, "within noise"),
        (-0.001, 0.0749, 1.5, "does not hold"),
        (-0.2, 0.001, None, "within noise"),
        (-0.2, -0.001, None, "does not hold"),
        (-0.2, -0.001, -9.0, "does not hold"),
        (-0.2, 0.001, -9.0, "within noise"),
    ],
)
def test_the_interval_beside_zero_and_half_of_the_papers_effect_is_the_mark(
    low: float, high: float, paper: float | None, mark: str
) -> None:
    assert mark_of(part(low, high, paper=paper)) == mark
    assert verdict([part(low, high, paper=paper)])["mark"] == mark


def test_an_effect_without_an_interval_is_no_evidence() -> None:
    alone = ClaimPart("a − b", Number(0.5, 3), Number(5.0, 1), None, None)
    found = verdict([alone])
    assert [found[key] for key in ("mark", "low", "high", "smallest")] == ["within noise", None, None, None]
    assert found["evidence"] == "a − b: +0.500"


def test_the_smallest_visible_effect_is_at_least_a_step_of_the_grid() -> None:
    same = ClaimPart("a − b", Number(64, 0, low=64, high=64, step=32), Number(50.0, 1, low=50, high=50), 75.0, "tokens")
    assert verdict([same])["smallest"] == 32
    wide = replace(same, difference=replace(same.difference, low=0, high=128))
    assert verdict([wide])["smallest"] == 64


def test_an_open_end_neither_supports_nor_refutes() -> None:
    below = ClaimPart("a − b", Number(-64, 0, high=-32), Number(-50.0, 1, high=-25.0), 75.0, "tokens")
    above = ClaimPart("a − b", Number(64, 0, low=32), Number(50.0, 1, low=25.0), 75.0, "tokens")
    assert (mark_of(below), mark_of(above)) == ("does not hold", "holds")
    unclear = replace(above, difference=replace(above.difference, low=-1), relative=replace(above.relative, low=-1.0))
    assert mark_of(unclear) == "within noise"
    found = verdict([below])
    assert [found[key] for key in ("low", "high", "smallest", "relative_low")] == [None, -32, None, None]
    assert found["evidence"] == "a − b: −64 tokens [−∞, −32]"


def test_the_part_that_supports_a_claim_least_decides() -> None:
    good, better, unclear, bad = part(0.1, 0.3), part(0.2, 0.4, "c"), part(-0.1, 0.3, "d"), part(-0.3, -0.1, "e")
    assert verdict([better, good])["mark"] == "holds"
    assert verdict([better, good])["effect"] == pytest.approx(0.2)
    assert verdict([better, good])["smallest"] == pytest.approx(0.1)
    assert (verdict([good, unclear])["mark"], verdict([good, unclear])["part"]) == ("within noise", "d")
    assert (verdict([good, unclear, bad])["mark"], verdict([unclear, bad])["part"]) == ("does not hold", "e")
    assert verdict([good, bad])["evidence"] == "a − b: +0.200 bpc [+0.100, +0.300]; e: −0.200 bpc [−0.300, −0.100]"
    assert shown(Number(12.0, 0, low=3.0, high=20.0), "tokens") == "+12 tokens [+3, +20]"


def section(*found: Comparison) -> Section:
    return Section("table_6", "Table 6", "paper", "here", (comparisons_table("table_6", "Table 6", "bpc", 3, found),))


def test_claims_find_their_differences_by_key_and_others_are_left_out() -> None:
    one = Comparison("recurrence_helps/init", "off − on", Interval(0.1, 0.04, 0.15), Interval(4.0, 2.0, 6.5), 2.7)
    other = replace(one, key="recurrence_helps_at_the_best_lengths/best", difference=Interval(-0.1, -0.15, -0.05))
    first, second = claims.judged([section(one, other, replace(one, key="of no claim"))])
    stated = {name: getattr(claims.CLAIMS[0], name) for name in ("id", "short", "claim", "paper", "rule")}
    assert first == {
        **stated,
        "mark": "holds",
        "effect": 0.1,
        "low": 0.04,
        "high": 0.15,
        "smallest": pytest.approx(0.055),
        "unit": "bpc",
        "relative": 4.0,
        "relative_low": 2.0,
        "relative_high": 6.5,
        "relative_paper": 2.7,
        "part": "off − on",
        "evidence": "off − on: +0.100 bpc [+0.040, +0.150]",
        "tables": ["table_6_differences"],
    }
    assert (stated["id"], second["id"]) == ("recurrence_helps", "recurrence_helps_at_the_best_lengths")
    assert (second["mark"], second["tables"]) == ("does not hold", ["table_6_differences"])


def test_losses_of_the_paper_are_compared_in_nats() -> None:
    assert percent_of_loss(29.59, 27.02) == pytest.approx(2.682, abs=0.001)


def test_the_committed_report_has_the_marks_that_follow_from_its_tables() -> None:
    results = json.loads((ROOT / "experiments" / "results" / "laptop" / "results.json").read_text())
    assert results["claims"] == claims.judged(read_sections(results))
