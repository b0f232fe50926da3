"""Marks of the paper's claims: recomputed from the tables, by one rule."""

import json
from dataclasses import replace

import numpy as np
import pytest

from experiments import claims
from experiments.claims import ClaimPart, margin, mark_of, power, shown, verdict
from experiments.report.sections import Number, Section
from experiments.tables.comparisons import Comparison, comparisons_table, percent_of_loss
from experiments.tables.intervals import Interval
from tests.experiments.report.written import ROOT, read_sections


def part(low: float, high: float, title: str = "a − b", paper: float | None = 1.5) -> ClaimPart:
    """A difference in bpc, ten times as large in percent; `paper` in percent."""
    middle = (low + high) / 2
    relative = Number(10 * middle, 1, low=10 * low, high=10 * high)
    return ClaimPart(f"claim/{title}", title, Number(middle, 3, low=low, high=high), relative, paper, "bpc")


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
    alone = ClaimPart("claim/a", "a − b", Number(0.5, 3), Number(5.0, 1), None, None)
    found = verdict([alone])
    assert [found[key] for key in ("mark", "low", "high")] == ["within noise", None, None]
    assert found["evidence"] == "a − b: +0.500"


def test_an_open_end_neither_supports_nor_refutes() -> None:
    below = ClaimPart("claim/a", "a − b", Number(-64, 0, high=-32), Number(-50.0, 1, high=-25.0), 75.0, "tokens")
    above = ClaimPart("claim/a", "a − b", Number(64, 0, low=32), Number(50.0, 1, low=25.0), 75.0, "tokens")
    assert (mark_of(below), mark_of(above)) == ("does not hold", "holds")
    unclear = replace(above, difference=replace(above.difference, low=-1), relative=replace(above.relative, low=-1.0))
    assert mark_of(unclear) == "within noise"
    found = verdict([below])
    assert [found[key] for key in ("low", "high", "relative_low")] == [None, -32, None]
    assert found["evidence"] == "a − b: −64 tokens [−∞, −32]"


def test_the_part_that_supports_a_claim_least_decides() -> None:
    good, better, unclear, bad = part(0.1, 0.3), part(0.2, 0.4, "c"), part(-0.1, 0.3, "d"), part(-0.3, -0.1, "e")
    assert verdict([better, good])["mark"] == "holds"
    assert verdict([better, good])["effect"] == pytest.approx(0.2)
    assert (verdict([good, unclear])["mark"], verdict([good, unclear])["part"]) == ("within noise", "d")
    assert (verdict([good, unclear, bad])["mark"], verdict([unclear, bad])["part"]) == ("does not hold", "e")
    assert verdict([good, bad])["evidence"] == "a − b: +0.200 bpc [+0.100, +0.300]; e: −0.200 bpc [−0.300, −0.100]"
    assert shown(Number(12.0, 0, low=3.0, high=20.0), "tokens") == "+12 tokens [+3, +20]"


@pytest.mark.parametrize(
    ("low", "high", "paper", "distance"),
    [
        (0.02, 0.2, 1.5, 0.02),  # holds: from 0
        (-0.03, 0.2, 1.5, 0.03),  # within noise: from 0
        (-0.03, 0.085, 1.5, 0.01),  # within noise: from half of the paper's 1.5 %, which is 0.075 bpc
        (-0.03, 0.02, None, 0.02),
        (-0.03, 0.02, -9.0, 0.02),
        (-0.03, 0.065, 1.5, 0.01),  # does not hold: from half of the paper's
        (-0.2, -0.01, 1.5, 0.085),
        (-0.2, -0.01, None, 0.01),  # does not hold: from 0
    ],
)
def test_the_margin_is_the_distance_from_the_boundary_that_decides(
    low: float, high: float, paper: float | None, distance: float
) -> None:
    assert margin(part(low, high, paper=paper)) == pytest.approx(distance)
    assert verdict([part(low, high, paper=paper)])["margin"] == pytest.approx(distance)


def test_power_is_the_share_of_intervals_of_this_width_that_lie_above_zero() -> None:
    """Drawn with the paper's effect as the truth: estimates ~ N(paper, half / 1.96), the interval ± half."""
    for half, paper in ((0.05, 1.0), (0.05, 0.3), (0.1, 1.0)):
        drawn = np.random.default_rng(1).normal(paper, 10 * half / 1.96, 100_000)
        found = power(part(0.3 - half, 0.3 + half, paper=paper))
        assert found == pytest.approx(np.mean(drawn - 10 * half > 0), abs=0.01)
    assert power(part(-0.1, 0.1, paper=None)) is None
    assert power(ClaimPart("claim/a", "a", Number(-64, 0, high=-32), Number(-50.0, 1, high=-25.0), 75.0, None)) is None
    assert (power(part(0.1, 0.1)), power(part(0.1, 0.1, paper=-1.0))) == (1.0, 0.0)


def test_a_sentence_says_what_was_found_instead_of_the_claim() -> None:
    def said(*parts: ClaimPart) -> str:
        return str(verdict(parts)["sentence"])

    small, noise = part(-0.009, 0.001, paper=0.42), part(-0.003, 0.011, "c", paper=0.08)
    against = part(-0.03, -0.01)
    assert said(part(0.1, 0.3)) == ""
    half = "The interval ends below half of the paper’s effect: −0.004 bpc [−0.009, +0.001]; half is +0.021."
    assert said(small) == half
    assert "−0.0040 bpc [−0.0090, +0.0010]; half is +0.0011." in said(part(-0.009, 0.001, paper=0.0215))
    assert said(against) == "The effect has the opposite sign: −0.020 bpc [−0.030, −0.010]."
    chance = round(100 * (power(noise) or 0))
    unclear = f"The run cannot tell: +0.004 bpc [−0.003, +0.011]; the chance to see the paper’s effect was {chance} %."
    assert (said(noise), 20 < chance < 80) == (unclear, True)
    assert said(part(-0.003, 0.011, paper=None)) == "The run cannot tell: +0.004 bpc [−0.003, +0.011]."
    assert "nothing was repeated" in said(ClaimPart("claim/a", "a", Number(0.5, 3), Number(5.0, 1), None, None))
    assert said(part(0.1, 0.3), noise, small) == f"1 of 3 parts hold. Weakest: a − b. {half}"
    assert said(replace(noise, untested="Nothing new.")) == "Nothing new."


def test_a_claim_whose_difference_says_nothing_is_not_tested() -> None:
    untested = replace(part(0.1, 0.3), untested="Nothing new.")
    found = verdict([untested])
    assert [found[key] for key in ("mark", "effect", "margin", "n_holding")] == ["not tested", 0.2, None, 0]
    assert verdict([untested, part(0.1, 0.3)])["mark"] == "not tested"
    assert verdict([untested, part(-0.1, 0.3)])["mark"] == "within noise"


def test_a_claim_is_judged_by_the_parts_that_have_a_value() -> None:
    missing = ClaimPart("claim/b", "c − d", None, None, 1.5, "bpc", pending=4)
    found = verdict([missing])
    assert [found[key] for key in ("state", "mark", "effect", "margin", "n_parts")] == ["pending", None, None, None, 1]
    assert found["parts"][0]["pending"] == 4
    found = verdict([part(0.1, 0.3), missing])
    assert [found[key] for key in ("state", "mark", "n_holding", "n_parts")] == ["so far", "holds", 1, 2]
    assert found["evidence"] == "a − b: +0.200 bpc [+0.100, +0.300]; c − d: to come"
    assert verdict([replace(part(0.1, 0.3), pending=1)])["state"] == "so far"
    assert verdict([])["state"] == "pending"


def section(*found: Comparison) -> Section:
    return Section("table_6", "Table 6", "paper", "here", (comparisons_table("table_6", "Table 6", "bpc", 3, found),))


def test_claims_find_their_differences_by_key_and_others_are_left_out() -> None:
    one = Comparison("recurrence_helps/init", "off − on", Interval(0.1, 0.04, 0.15), Interval(4.0, 2.0, 6.5), 2.7)
    other = replace(one, key="recurrence_helps_at_the_best_lengths/best", difference=Interval(-0.1, -0.15, -0.05))
    missing = Comparison("our_encoding_is_better/shaw", "shaw − ours", None, None, pending=3)
    first, second, third = claims.judged([section(one, other, missing, replace(one, key="of no claim"))])
    stated = {name: getattr(claims.CLAIMS[0], name) for name in ("id", "short", "panel", "claim", "paper", "rule")}
    numbers = {
        "mark": "holds",
        "effect": 0.1,
        "low": 0.04,
        "high": 0.15,
        "unit": "bpc",
        "relative": 4.0,
        "relative_low": 2.0,
        "relative_high": 6.5,
        "relative_paper": 2.7,
        "margin": 0.04,
        "power": pytest.approx(0.65, abs=0.01),
    }
    assert first == {
        **stated,
        **numbers,
        "state": "final",
        "part": "off − on",
        "parts": [{**numbers, "key": "recurrence_helps/init", "title": "off − on", "pending": 0}],
        "n_parts": 1,
        "n_holding": 1,
        "sentence": "",
        "evidence": "off − on: +0.100 bpc [+0.040, +0.150]",
        "tables": ["table_6_differences"],
    }
    assert (stated["id"], second["id"]) == ("recurrence_helps", "recurrence_helps_at_the_best_lengths")
    assert (second["mark"], second["tables"]) == ("does not hold", ["table_6_differences"])
    assert (third["state"], third["mark"], third["parts"][0]["pending"]) == ("pending", None, 3)


def test_the_table_tells_claims_what_is_not_tested() -> None:
    one = Comparison("recurrence_helps/init", "off − on", Interval(0.1, 0.04, 0.15), Interval(4.0, 2.0, 6.5), 2.7)
    (found,) = claims.judged([section(replace(one, untested="Nothing new."))])
    assert (found["mark"], found["sentence"]) == ("not tested", "Nothing new.")


def test_claims_of_a_section_without_tables_are_pending() -> None:
    found = claims.judged([Section("table_7", "Table 7", "paper", "pending"), section()])
    assert [(claim["id"], claim["state"], claim["tables"]) for claim in found] == [
        ("recurrence_helps_without_long_dependencies", "pending", [])
    ]


def test_losses_of_the_paper_are_compared_in_nats() -> None:
    assert percent_of_loss(29.59, 27.02) == pytest.approx(2.682, abs=0.001)


def test_the_committed_report_has_the_marks_that_follow_from_its_tables() -> None:
    results = json.loads((ROOT / "experiments" / "results" / "laptop" / "results.json").read_text())
    assert results["claims"] == claims.judged(read_sections(results))
