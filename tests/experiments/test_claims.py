"""The marks of the paper's claims: recomputed from the tables, flipped by a doctored file, undecided by noise."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest

from experiments.claims import claims, rules
from experiments.paper import TABLE_6, TABLE_7, TABLE_8, TABLE_9, TABLE_10
from experiments.tables import table_6, table_7
from experiments.tables.arms import Arm

COMMITTED = Path(__file__).parents[2] / "experiments" / "results" / "laptop" / "results.json"
LARGEST = 1e6


def over_seeds(value: float, spread: float = 0.01) -> dict[str, Any]:
    """A cell of two seeds."""
    by_seed = {"1": value - spread, "2": value + spread}
    return {"value": value, "digits": 3, "standard_error": spread, "by_seed": by_seed}


def of_heads(value: float) -> dict[str, Any]:
    return {"value": value, "digits": 3, "standard_error": 0.01}


def as_in_the_paper() -> dict[str, Any]:
    """The tables with the paper's own figures in our columns."""
    gains = {(True, "relative"): 0.25, (True, "shaw"): 0.0, (False, "relative"): 0.5, (False, "shaw"): 0.0}
    rows_6 = [
        {
            "arm": {"text": Arm(row.recurrence, row.encoding, row.loss).title},
            "init": over_seeds(row.ppl_init),
            "best": over_seeds(row.ppl_best),
            "beyond": over_seeds(gain) if (gain := gains.get((row.recurrence, row.encoding))) is not None else None,
        }
        for row in TABLE_6
    ]
    full = [{"arm": {"text": arm.title}, "init": over_seeds(40.0)} for arm in table_6.FULL_LOSS]
    rows_7 = [{"arm": {"text": Arm(r.recurrence, r.encoding).title}, "loss": over_seeds(r.ppl)} for r in TABLE_7]
    rows_8 = [
        {"arm": {"text": f"group {row.group}: {row.model}"}, "r0.1": interval(row.recl[0.1], 20)} for row in TABLE_8
    ]
    rows_9 = [
        {
            "arm": {"text": "characters"},
            "length": {"value": length, "digits": 0},
            **{
                name: {"value": ratio + by, "digits": 0} for name, by in (("hidden", 0), ("lowest", -9), ("highest", 9))
            },
        }
        for length, ratio in TABLE_9.items()
    ]
    rows_10 = [
        {
            "arm": {"text": f"{'recurrence' if row.recurrence else 'no recurrence'}, {row.loss} loss"},
            "best": over_seeds(row.ppl_best),
        }
        for row in TABLE_10
    ]
    terms = {"all terms": (0.7, 20, None), "(a) content": (0.98, 60, 0.6), "(b) content and position": (0.75, 22, 0.1)}
    terms |= {"(d) position": (0.85, 30, 0.4)}
    rows_f = [
        {
            "arm": {"text": name},
            "flatness": of_heads(flat),
            "distance": of_heads(far),
            "unlike": None if unlike is None else of_heads(unlike),
        }
        for name, (flat, far, unlike) in terms.items()
    ]
    tables = {"table_6": rows_6, "table_6_full_loss": full, "table_7": rows_7, "table_8": rows_8, "table_9": rows_9}
    tables |= {"figures_5_to_7": rows_f, "table_10": rows_10}
    return {"sections": [{"tables": [{"id": name, "rows": rows} for name, rows in tables.items()]}]}


def interval(value: float, half: float) -> dict[str, Any]:
    return {"value": value, "digits": 0, "low": value - half, "high": value + half}


def doctored(results: dict[str, Any]) -> dict[str, Any]:
    """The same with the order of everything reversed: every number of ours x becomes 100 - x, intervals likewise."""
    changed = copy.deepcopy(results)
    for table in (table for section in changed["sections"] for table in section["tables"] if table["id"] == "table_9"):
        for row in table["rows"]:
            row["lowest"], row["highest"] = row["highest"], row["lowest"]
    for section in changed["sections"]:
        for table in section["tables"]:
            for row in table["rows"]:
                for key, cell in row.items():
                    if cell and "value" in cell and key != "length" and not key.startswith("paper"):
                        reverse(cell, table["id"], key)
    return changed


def reverse(cell: dict[str, Any], table: str, key: str) -> None:
    top = (
        0.0 if key == "beyond" else 1.0 if key in ("flatness", "unlike") else LARGEST if table == "table_9" else 1000.0
    )
    cell["value"] = top - cell["value"]
    if "by_seed" in cell:
        cell["by_seed"] = {seed: top - value for seed, value in cell["by_seed"].items()}
    if "low" in cell:
        cell["low"], cell["high"] = top - cell["high"], top - cell["low"]


def marks(results: dict[str, Any]) -> dict[str, str]:
    return {claim["id"]: claim["mark"] for claim in claims.judged(results)}


def test_the_papers_own_figures_make_every_claim_hold() -> None:
    assert set(marks(as_in_the_paper()).values()) == {"holds"}
    assert len(marks(as_in_the_paper())) == len(claims.CLAIMS) == 10


def test_a_reversed_order_flips_every_mark() -> None:
    flipped = marks(doctored(as_in_the_paper()))
    assert flipped.pop("speed_up_grows") == "does not hold"
    assert set(flipped.values()) == {"does not hold"}


def test_seeds_that_overlap_are_noise_and_one_seed_is_no_evidence() -> None:
    results = as_in_the_paper()
    for row in results["sections"][0]["tables"][0]["rows"]:
        for key in ("init", "best"):
            row[key] |= {"by_seed": {"1": 20.0, "2": 2 * row[key]["value"] - 20.0}, "standard_error": 5.0}
    assert marks(results)["recurrence_helps"] == "within noise"
    for row in results["sections"][0]["tables"][2]["rows"]:
        row["loss"].pop("standard_error")
        row["loss"]["by_seed"] = {"1": row["loss"]["value"]}
    assert marks(results)["recurrence_helps_without_long_dependencies"] == "within noise"


def test_separated_seeds_within_two_standard_errors_are_noise() -> None:
    low, high = over_seeds(1.0, 0.1), over_seeds(1.22, 0.1)
    assert rules.less(low, high) == "within noise"
    assert rules.less(low, over_seeds(1.5, 0.1)) == "holds"
    assert rules.less(over_seeds(1.5, 0.1), low) == "does not hold"


def test_another_encoding_that_gains_from_longer_attention_refutes_the_claim() -> None:
    results = as_in_the_paper()
    rows = rules.rows_of(results, "table_6")
    rows["recurrence, Shaw, full loss"]["beyond"] = over_seeds(0.3)
    assert marks(results)["only_ours_gains_from_longer_attention"] == "does not hold"


def test_claims_whose_tables_were_not_made_are_left_out() -> None:
    results = as_in_the_paper()
    results["sections"][0]["tables"] = [t for t in results["sections"][0]["tables"] if t["id"] == "table_7"]
    assert list(marks(results)) == ["recurrence_helps_without_long_dependencies"]
    assert table_7.TITLE.startswith("Table 7")


@pytest.mark.skipif(not COMMITTED.exists(), reason="no laptop run is committed")
def test_the_committed_report_has_the_marks_that_follow_from_its_tables() -> None:
    results = json.loads(COMMITTED.read_text())
    assert {claim["id"]: claim["mark"] for claim in results["claims"]} == marks(results)
    assert {claim["id"]: claim["evidence"] for claim in results["claims"]} == {
        claim["id"]: claim["evidence"] for claim in claims.judged(results)
    }
    reversed_marks = marks(doctored(results))
    decided = {name: mark for name, mark in marks(results).items() if mark == "holds"}
    assert decided
    assert all(reversed_marks[name] != "holds" for name in decided)
    assert not any(math.isnan(row["best"]["value"]) for row in rules.rows_of(results, "table_6").values())
