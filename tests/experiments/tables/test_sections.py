"""Sections and claims fit together: marks in worlds as the paper's and reversed, profiles that leave arms out."""

from dataclasses import replace
from pathlib import Path

from experiments.claims import CLAIMS, judged
from experiments.engine.profiles import Setup
from experiments.report.sections import Section
from experiments.reproduce import SECTIONS
from experiments.tables.arms import Arm
from tests.experiments.conftest import outcomes_of
from tests.experiments.tables.sample_outcomes import World

IDS = [claim.id for claim in CLAIMS]


def test_the_papers_differences_make_every_claim_hold(sections: list[Section]) -> None:
    assert [section.id for section in sections] == list(SECTIONS)
    assert {claim["id"]: claim["mark"] for claim in judged(sections)} == dict.fromkeys(IDS, "holds")


def test_reversed_differences_flip_every_mark(finished: Setup, tmp_path: Path) -> None:
    other = replace(finished, directory=tmp_path / "report")
    outcomes = outcomes_of(other, World(-1))
    claims = judged([table.section(other, outcomes) for table in SECTIONS.values()])
    assert {claim["id"]: claim["mark"] for claim in claims} == dict.fromkeys(IDS, "does not hold")


def test_arms_that_a_profile_leaves_out_leave_the_other_comparisons(finished: Setup) -> None:
    fewer = replace(finished.profile, leave_out=(Arm(False, "al_rfou").key, Arm(False, "shaw", "half").key, "qrnn"))
    smaller = replace(finished, profile=fewer)
    assert not {"qrnn-seed1", "no_recurrence-al_rfou-full_loss-seed1"} & {
        job.name for table in SECTIONS.values() for job in table.jobs(smaller)
    }
    table = next(t for t in SECTIONS["table_6"].section(smaller, outcomes_of(smaller)).tables if "differences" in t.id)
    assert "half_loss_rescues_absolute_encodings/absolute" in table.rows
    assert "half_loss_rescues_absolute_encodings/al_rfou" not in table.rows


def test_a_figure_that_was_not_drawn_is_left_out(finished: Setup) -> None:
    drawn = finished.runs / "attention-seed1" / "terms.png"
    picture = drawn.read_bytes()
    drawn.unlink()
    figures = SECTIONS["figures_5_to_7"].section(finished, outcomes_of(finished)).figures
    drawn.write_bytes(picture)
    assert [figure.alt for figure in figures] == ["Figure 5", "Figure 6"]


def test_terms_of_runs_that_are_not_finished_are_planned(finished: Setup) -> None:
    outcomes = outcomes_of(finished)
    names = {job.name for job in outcomes.jobs if not job.name.startswith("attention-adam")} - {"attention-seed2"}
    shapes, rows = SECTIONS["figures_5_to_7"].section(finished, replace(outcomes, finished=frozenset(names))).tables
    assert {key.split("-")[0] for key in shapes.rows} == {"muon"}
    assert len(rows.rows) == 20
    muon, adam = (rows.rows[f"terms_look_as_described/{name}-centred-a_uniform"] for name in ("muon", "adam"))
    assert rows.number("terms_look_as_described/muon-centred-a_uniform", "pending").value == 1
    assert muon["difference"] is not None
    assert adam["difference"] is None
