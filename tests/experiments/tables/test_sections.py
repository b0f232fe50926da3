"""Every table of the report from result files with invented numbers: sections, claims and pages fit together."""

from dataclasses import replace
from pathlib import Path

import pytest

from experiments.claims.claims import BEYOND, CLAIMS, judged
from experiments.engine.jobs import merge
from experiments.engine.outcomes import Outcomes
from experiments.engine.profiles import PROFILES
from experiments.engine.setup import Setup
from experiments.report.rendering import write_report
from experiments.report.sections import Section, to_json
from experiments.reproduce import SECTIONS
from experiments.tables.arms import ENCODINGS, Arm
from tests.experiments.report.sample_results import sample_results
from tests.experiments.tables.sample_outcomes import World, draw_figures, small_corpus, write_outcomes

IDS = [claim.id for claim in (*CLAIMS, *BEYOND)]
LOSSES = [claim.id for claim in (*CLAIMS, *BEYOND) if claim.tables[0] in ("table_6", "table_7", "table_10", "beyond")]
LOSSES.remove("only_ours_gains_from_longer_attention")


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    """A reproduction whose jobs have finished."""
    folder = tmp_path_factory.mktemp("reproduction")
    setup = Setup(replace(PROFILES["laptop"], leave_out=()), small_corpus(folder), folder / "report")
    write_outcomes(setup, merge({name: table.jobs(setup) for name, table in SECTIONS.items()}))
    sample_results(folder / "sample")
    draw_figures(setup, (folder / "sample" / "figures" / "table_6.png").read_bytes())
    return setup


@pytest.fixture(scope="module")
def sections(setup: Setup) -> list[Section]:
    return made(setup)


def made(setup: Setup) -> list[Section]:
    return [table.section(setup, outcomes_of(setup)) for table in SECTIONS.values()]


def outcomes_of(setup: Setup) -> Outcomes:
    jobs = merge({name: table.jobs(setup) for name, table in SECTIONS.items()})
    return Outcomes(setup.runs, setup.figures, tuple(jobs))


def test_sections_and_claims_follow_the_schema_and_are_shown(setup: Setup, sections: list[Section]) -> None:
    results = sample_results(setup.directory) | {"sections": to_json(sections), "claims": judged(sections)}
    page = write_report(results, setup.directory).with_name("report.md").read_text()
    assert [section.id for section in sections] == list(SECTIONS)
    assert [claim["id"] for claim in results["claims"]] == IDS
    figures = [figure for section in sections for figure in section.figures]
    assert page.count("![") == len(figures) + 1 >= 11  # the first is the picture of the claims
    assert page.count("### sample") == 2
    loss = next(t for section in sections for t in section.tables if t.id == "table_7").number(Arm().key, "loss")
    assert list(loss.by_seed or {}) == ["1", "2", "3", "4"]
    assert f"| recurrence, relative, full loss | {loss.value:.3f} ± {loss.standard_error:.3f} | 0.000 |" in page


def test_the_papers_differences_make_every_claim_hold(sections: list[Section]) -> None:
    assert {claim["id"]: claim["mark"] for claim in judged(sections)} == dict.fromkeys(IDS, "holds")
    effects = {claim["id"]: (claim["relative"], claim["relative_paper"]) for claim in judged(sections)}
    assert effects["recurrence_helps"] == (pytest.approx(2.3, abs=0.2), pytest.approx(2.68, abs=0.01))


@pytest.mark.parametrize(
    ("world", "mark", "of"), [(World(-1), "does not hold", IDS), (World(1, 0.4), "within noise", LOSSES)]
)
def test_reversed_differences_flip_every_mark_and_noise_hides_every_loss(
    world: World, mark: str, of: list[str], setup: Setup, tmp_path: Path
) -> None:
    other = replace(setup, directory=tmp_path / "report")
    write_outcomes(other, merge({name: table.jobs(other) for name, table in SECTIONS.items()}), world)
    found = {claim["id"]: claim["mark"] for claim in judged(made(other))}
    assert {name: found[name] for name in of} == dict.fromkeys(of, mark)


def test_arms_that_a_profile_leaves_out_leave_the_other_comparisons(setup: Setup) -> None:
    fewer = replace(setup.profile, leave_out=(Arm(False, "al_rfou").key, Arm(False, "shaw", "half").key, "qrnn"))
    smaller = replace(setup, profile=fewer)
    assert not {"qrnn-seed1", "no_recurrence-al_rfou-full_loss-seed1"} & {
        job.name for table in SECTIONS.values() for job in table.jobs(smaller)
    }
    table = next(t for t in SECTIONS["table_6"].section(smaller, outcomes_of(smaller)).tables if "differences" in t.id)
    assert "half_loss_rescues_absolute_encodings/absolute" in table.rows
    assert "half_loss_rescues_absolute_encodings/al_rfou" not in table.rows


def test_claims_do_not_depend_on_the_titles_of_rows(
    setup: Setup, sections: list[Section], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {claim["id"]: claim["mark"] for claim in judged(sections)}
    for encoding in ENCODINGS:
        monkeypatch.setitem(ENCODINGS, encoding, f"renamed {encoding}")
    again = judged(made(setup))
    assert {claim["id"]: claim["mark"] for claim in again} == before
    assert "renamed relative" in again[0]["evidence"]


def test_rows_keep_the_papers_numbers_beside_ours(sections: list[Section]) -> None:
    tables = {table.id: table for section in sections for table in section.tables}
    assert tables["table_6"].number(Arm(True, "shaw").key, "paper_init").value == 27.94
    assert tables["table_7"].number(Arm(False).key, "paper_difference").value == pytest.approx(1.9)
    assert tables["table_8"].number("group1-qrnn", "paper_r0.1").value == 500
    assert tables["table_9"].number("char-1800", "paper").value == 773
    assert tables["table_10"].number(Arm(False, longer="equal tokens").key, "paper_segment").value == 176
    assert tables["table_10"].number(Arm(False, longer="equal steps").key, "paper_best").value == 27.98
    assert tables["table_10"].number(Arm(False, longer="equal tokens").key, "peak").value == pytest.approx(
        600e6 / 2**20
    )
    assert tables["main_results"].number(Arm().key, "paper").value == 1.06
    with pytest.raises(TypeError, match="table_9, row char-3000, column paper: must be a number"):
        tables["table_9"].number("char-3000", "paper")  # a length that the paper does not have


def test_a_figure_that_was_not_drawn_is_left_out(setup: Setup) -> None:
    drawn = setup.runs / "attention" / "terms.png"
    picture = drawn.read_bytes()
    drawn.unlink()
    figures = SECTIONS["figures_5_to_7"].section(setup, Outcomes(setup.runs, setup.figures)).figures
    drawn.write_bytes(picture)
    assert [figure.alt for figure in figures] == ["Figure 5", "Figure 6"]
