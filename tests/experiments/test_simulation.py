"""Simulated intervals and marks, with few repetitions: the rule of the report covers the truth as often as it says."""

import re

import pytest

from experiments import simulation
from experiments.simulation import coverage, draws, intervals, marks


def test_the_rule_covers_the_truth_and_marks_come_as_often_as_they_should() -> None:
    found = intervals("residual", draws((3, 3), 0.02, "", 700, 3))
    covered, half = coverage(found)
    assert covered == pytest.approx(95, abs=2)
    # Of three pairs by Student's 97.5 % quantile with 26 runs less 12 arms and 2 seeds, of the text by the normal one.
    assert half == pytest.approx(((2.18 * 0.003) ** 2 * 2 / 3 + (1.96 * 0.002) ** 2) ** 0.5, rel=0.05)
    none, half_of_it, whole = (marks(found, truth, 1.0) for truth in (0.0, 0.5, 1.0))
    assert none["holds"] / 700 == pytest.approx(0.025, abs=0.02)  # a wrong sign
    assert half_of_it["does not hold"] / 700 <= 0.025 + 0.02  # an effect that is just half of the paper's
    assert (none["does not hold"] > 0.4 * 700, whole["does not hold"], whole["holds"] > 0.9 * 700) == (True, 0, True)


def test_the_result_has_a_row_for_each_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "REPETITIONS", 2)
    rows = [line for line in simulation.report().splitlines() if re.match(r"\| \d and \d ", line)]
    assert len(rows) == 3 * 4 + 3 * 6
    assert all(len(row.split("|")) in (13, 8) for row in rows)
