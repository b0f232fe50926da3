"""Marks of the paper's claims: recomputed from the tables, flipped by reversed numbers, undecided by noise."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.claims import claims, rules
from experiments.claims.verdicts import Verdict
from experiments.paper import TABLE_6, TABLE_7, TABLE_8, TABLE_9, TABLE_10
from experiments.report.cells import Cell, Number, Text
from experiments.report.sections import Section, Table, label, section_from_json
from experiments.tables import figures_5_to_7, table_6, table_7, table_8, table_10
from experiments.tables.arms import Arm

COMMITTED = Path(__file__).parents[3] / "experiments" / "results" / "laptop" / "results.json"
LARGEST = 1e6
Change = Callable[[str, str, str, Cell], Cell]


def over_two_seeds(value: float, spread: float = 0.01) -> Number:
    return Number(value, 3, spread, {"1": value - spread, "2": value + spread})


def table(name: str, rows: dict[str, dict[str, Cell]]) -> Table:
    return Table(name, name, (label("arm"),), rows)


def as_in_the_paper() -> list[Section]:
    """The tables with the paper's own numbers in our columns."""
    gains = {(True, "relative"): 0.25, (True, "shaw"): 0.0, (False, "relative"): 0.5, (False, "shaw"): 0.0}
    rows_6: dict[str, dict[str, Cell]] = {}
    for row in TABLE_6:
        arm = Arm(row.recurrence, row.encoding, row.loss)
        gain = gains.get((row.recurrence, row.encoding))
        rows_6[arm.key] = {
            "arm": Text(arm.title),
            "init": over_two_seeds(row.ppl_init),
            "best": over_two_seeds(row.ppl_best),
            "beyond": None if gain is None else over_two_seeds(gain),
        }
    terms = {"all": (0.7, 20, None), "a": (0.98, 60, 0.6), "b": (0.75, 22, 0.1), "d": (0.85, 30, 0.4)}
    paper_8 = {(row.group, row.model): row.recl[0.1] for row in TABLE_8}
    arms_10 = {arm: row.ppl_best for arm, row in zip(table_10.ROWS, TABLE_10, strict=True)}
    tables = [
        table("table_6", rows_6),
        table(
            "table_6_full_loss",
            {arm.key: {"arm": Text(arm.title), "init": over_two_seeds(40.0)} for arm in table_6.FULL_LOSS},
        ),
        table("table_7", {Arm(r.recurrence, r.encoding).key: {"loss": over_two_seeds(r.ppl)} for r in TABLE_7}),
        table(
            "table_8",
            {
                table_8.row_key(group, arm): {"r0.1": interval(paper_8[group, name], 20)}
                for group, members in table_8.GROUPS.items()
                for name, arm in members.items()
            },
        ),
        table(
            "table_9",
            {
                f"char-{length}": {
                    "arm": Text("characters"),
                    "length": Number(length, 0),
                    "hidden": Number(ratio, 0),
                    "lowest": Number(ratio - 9, 0),
                    "highest": Number(ratio + 9, 0),
                }
                for length, ratio in TABLE_9.items()
            },
        ),
        table("table_10", {arm.key: {"best": over_two_seeds(ppl)} for arm, ppl in arms_10.items()}),
        table(
            "figures_5_to_7",
            {
                name: {
                    "flatness": Number(flat, 3, 0.01),
                    "distance": Number(far, 3, 0.01),
                    "unlike": None if unlike is None else Number(unlike, 3, 0.01),
                }
                for name, (flat, far, unlike) in terms.items()
            },
        ),
    ]
    assert set(terms) == set(figures_5_to_7.ROWS)
    tables = [replace(t, rows={key: {"arm": Text(key), **row} for key, row in t.rows.items()}) for t in tables]
    return [Section("all", "All", "paper", "here", tuple(tables))]


def interval(value: float, half: float) -> Number:
    return Number(value, 0, low=value - half, high=value + half)


def changed(sections: list[Section], change: Change) -> list[Section]:
    """The sections with every cell replaced by `change(table, row, column, cell)`."""
    return [
        replace(
            section,
            tables=tuple(
                replace(
                    t,
                    rows={
                        key: {column: change(t.id, key, column, cell) for column, cell in row.items()}
                        for key, row in t.rows.items()
                    },
                )
                for t in section.tables
            ),
        )
        for section in sections
    ]


def reversed_order(sections: list[Section]) -> list[Section]:
    """The sections with every number of ours x replaced by c - x, intervals likewise."""

    def reverse(name: str, row: str, column: str, cell: Cell) -> Cell:
        if not isinstance(cell, Number) or column == "length" or column.startswith("paper"):
            return cell
        top = {"beyond": 0.0, "flatness": 1.0, "unlike": 1.0}.get(column, LARGEST if name == "table_9" else 1000.0)
        return replace(
            cell,
            value=top - cell.value,
            by_seed=cell.by_seed and {seed: top - value for seed, value in cell.by_seed.items()},
            low=None if cell.high is None else top - cell.high,
            high=None if cell.low is None else top - cell.low,
        )

    swapped = {"lowest": "highest", "highest": "lowest"}
    turned = changed(sections, reverse)
    tables = [
        replace(t, rows={key: {swapped.get(c, c): cell for c, cell in row.items()} for key, row in t.rows.items()})
        if t.id == "table_9"
        else t
        for section in turned
        for t in section.tables
    ]
    return [Section("all", "All", "paper", "here", tuple(tables))]


def marks(sections: list[Section]) -> dict[str, str]:
    return {claim["id"]: claim["mark"] for claim in claims.judged(sections)}


def test_the_papers_own_numbers_make_every_claim_hold() -> None:
    assert set(marks(as_in_the_paper()).values()) == {"holds"}
    assert list(marks(as_in_the_paper())) == [claim.id for claim in claims.CLAIMS]
    assert len(claims.CLAIMS) >= 10


def test_a_reversed_order_flips_every_mark() -> None:
    assert set(marks(reversed_order(as_in_the_paper())).values()) == {"does not hold"}


def test_seeds_that_overlap_are_noise_and_one_seed_is_no_evidence() -> None:
    def overlapping(name: str, row: str, column: str, cell: Cell) -> Cell:
        if name == "table_6" and column in ("init", "best") and isinstance(cell, Number):
            return replace(cell, by_seed={"1": 20.0, "2": 2 * cell.value - 20.0}, standard_error=5.0)
        return cell

    assert marks(changed(as_in_the_paper(), overlapping))["recurrence_helps"] == "within noise"

    def of_one_seed(name: str, row: str, column: str, cell: Cell) -> Cell:
        if name == "table_7" and isinstance(cell, Number):
            return Number(cell.value, 3, by_seed={"1": cell.value})
        return cell

    found = marks(changed(as_in_the_paper(), of_one_seed))
    assert found["recurrence_helps_without_long_dependencies"] == "within noise"
    assert found["recurrence_helps"] == "holds"


def test_separated_seeds_within_two_standard_errors_are_noise() -> None:
    low, high = over_two_seeds(1.0, 0.1), over_two_seeds(1.22, 0.1)
    assert rules.less(low, high) == "within noise"
    assert rules.less(low, over_two_seeds(1.5, 0.1)) == "holds"
    assert rules.less(over_two_seeds(1.5, 0.1), low) == "does not hold"


def test_another_encoding_that_gains_from_longer_attention_refutes_the_claim() -> None:
    def shaw_gains(name: str, row: str, column: str, cell: Cell) -> Cell:
        return over_two_seeds(0.3) if (row, column) == (Arm(True, "shaw").key, "beyond") else cell

    assert marks(changed(as_in_the_paper(), shaw_gains))["only_ours_gains_from_longer_attention"] == "does not hold"


def test_a_missing_term_decides_nothing() -> None:
    (section,) = as_in_the_paper()
    tables = [replace(t, rows={k: r for k, r in t.rows.items() if k != "d"}) for t in section.tables]
    found = {claim["id"]: claim for claim in claims.judged([replace(section, tables=tuple(tables))])}
    verdict = Verdict("within noise", "a term is missing")
    assert {**found["terms_look_as_described"], **vars(verdict)} == found["terms_look_as_described"]


def test_claims_whose_tables_were_not_made_are_left_out() -> None:
    (section,) = as_in_the_paper()
    only = replace(section, tables=tuple(t for t in section.tables if t.id == "table_7"))
    assert list(marks([only])) == ["recurrence_helps_without_long_dependencies"]
    assert table_7.TITLE.startswith("Table 7")


def test_evidence_names_the_rows_by_their_titles() -> None:
    found = {claim["id"]: claim["evidence"] for claim in claims.judged(as_in_the_paper())}
    assert found["recurrence_helps"] == (
        "27.020 ± 0.010 (recurrence, ours, full loss) against 29.590 ± 0.010 (no recurrence, ours, full loss): holds"
    )


@pytest.mark.skipif(not COMMITTED.exists(), reason="no laptop run is committed")
def test_the_committed_report_has_the_marks_that_follow_from_its_tables() -> None:
    results: dict[str, Any] = json.loads(COMMITTED.read_text())
    sections = [section_from_json(section) for section in results["sections"]]
    assert {claim["id"]: claim["mark"] for claim in results["claims"]} == marks(sections)
    assert {claim["id"]: claim["evidence"] for claim in results["claims"]} == {
        claim["id"]: claim["evidence"] for claim in claims.judged(sections)
    }
    reversed_marks = marks(reversed_order(sections))
    decided = {name: mark for name, mark in marks(sections).items() if mark == "holds"}
    assert decided
    assert all(reversed_marks[name] != "holds" for name in decided)
    (found,) = (t for section in sections for t in section.tables if t.id == "table_6")
    assert not any(math.isnan(found.number(row, "best").value) for row in found.rows)
