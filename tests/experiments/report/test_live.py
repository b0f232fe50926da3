"""Report while jobs run: what is there is shown, what is not waits, and writing it never ends the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from experiments.claims import CLAIMS
from experiments.engine.jobs import Job, Outcomes, Pending
from experiments.engine.plan import Plan, Stopwatch
from experiments.engine.profiles import PROFILES, Setup
from experiments.report import live
from experiments.report.live import LiveReport
from experiments.report.sections import Section
from tests.experiments.report.written import check_results
from txl_lightning.errors import UserError

JOBS = [Job(name, "speed", (), "x") for name in "abc"]
Make = Callable[[Setup, Outcomes], Section]


def section(name: str, *needs: Job) -> SimpleNamespace:
    """Module of a section that needs the results of some jobs."""

    def make(setup: Setup, outcomes: Outcomes) -> Section:
        for job in needs:
            outcomes.result(job, "speed.json")
        return Section(name, f"Title of {name}", "The paper.", f"{name} is made")

    return SimpleNamespace(TITLE=f"Title of {name}", PAPER="The paper.", section=make)


@pytest.fixture
def report(tmp_path: Path) -> LiveReport:
    setup = Setup(PROFILES["smoke"], (), tmp_path, command="make it", again="make it again")
    for job in JOBS:
        (setup.runs / job.name).mkdir(parents=True)
        (setup.runs / job.name / "speed.json").write_text("{}")
        record = {"key": "ab" * 32, "done": True, "seconds": 1.0}
        (setup.runs / job.name / "job.json").write_text(json.dumps(record))
    modules: Any = {
        "one": section("one", JOBS[0]),
        "two": section("two", JOBS[1]),
        "table_9": section("table_9", JOBS[2]),
    }
    watch = Stopwatch(tmp_path / "clock.json", restart=True)
    return LiveReport(Plan(setup, JOBS, {job.name: "ab" * 32 for job in JOBS}, [{}]), modules, watch)


def progress(*done: str, failed: dict[str, str] | None = None) -> Any:
    jobs = SimpleNamespace(done=set(done), failed=failed or {})
    return Mock(jobs=jobs, running=lambda: ["b 600/1500 bpc 2.597"], seconds_left=lambda: 125.0)


def written(report: LiveReport) -> tuple[dict[str, Any], str]:
    folder = report.plan.setup.directory
    results = json.loads((folder / "results.json").read_text())
    check_results(results)
    return results, (folder / "report.html").read_text()


def test_the_page_follows_the_jobs_and_the_last_one_does_not(report: LiveReport) -> None:
    report.tick(progress())
    report.tick(progress("a"))  # too soon after the first
    assert written(report)[0]["progress"]["finished"] == 0
    report._next = 0.0
    report.tick(progress("a"))  # jobs start before the report is written
    report.tick(progress("a"))
    results, page = written(report)
    assert [part["here"] for part in results["sections"]] == ["one is made", *(f"pending: waits for {n}" for n in "bc")]
    assert (results["finished"], list(results["runs"])) == (False, ["a"])
    assert {claim["id"]: claim["state"] for claim in results["claims"]} == {"speed_up_grows": "pending"}
    state = results["progress"]
    assert (state["jobs"], state["seconds_left"], state["stopped"]) == (3, 125.0, False)
    assert '<meta http-equiv="refresh" content="15">' in page
    for shown in ("1 of 3 jobs are finished, about 2 min left", "b 600/1500 bpc 2.597", "pending: waits for b"):
        assert shown in page
    report.tick(progress("a", "b", "c"))
    assert report.finish()["finished"]
    results, page = written(report)
    assert (results["finished"], results["progress"]) == (True, None)
    assert [part["here"] for part in results["sections"]] == ["one is made", "two is made", "table_9 is made"]
    assert not any(words in page for words in ('http-equiv="refresh"', "jobs are finished", "waits for"))


def test_a_report_that_was_stopped_says_how_to_continue(report: LiveReport) -> None:
    report.tick(progress("a", failed={"b": "b ended with exit status 1"}))
    report.finish()
    results, page = written(report)
    assert (results["progress"]["stopped"], results["progress"]["running"]) == (True, [])
    assert "refresh" not in page.partition("<style>")[0]
    for shown in ("Unfinished: 1 of 3 jobs", "<code>make it again</code>", "b ended with exit status 1"):
        assert shown in page


@pytest.mark.parametrize("error", [UserError("half written"), KeyError("bug")])
def test_an_error_in_a_section_is_shown_and_a_bug_is_raised_at_the_end(report: LiveReport, error: Exception) -> None:
    module: Any = report.modules["two"]
    make = module.section
    module.section = Mock(side_effect=error)
    report.tick(progress("a"))
    shown = written(report)[0]["sections"][1]["here"]
    bug = isinstance(error, KeyError)
    assert shown == ("pending: could not be made (KeyError: 'bug')" if bug else "pending: half written")
    module.section = make
    report.tick(progress("a", "b", "c"))
    if not bug:
        report.finish()
    else:
        with pytest.raises(KeyError, match="bug"):
            report.finish()
    assert written(report)[0]["finished"]
    module.section = Mock(side_effect=UserError("damaged"))
    with pytest.raises(UserError, match="damaged"):
        report.finish()


def test_a_report_that_cannot_be_written_does_not_end_the_run(
    report: LiveReport, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(live, "write_report", Mock(side_effect=UserError("no space left")))
    report.tick(progress("a"))
    assert "no space left" in capsys.readouterr().err
    report.tick(progress("a", "b", "c"))
    with pytest.raises(UserError, match="no space left"):
        report.finish()


def test_sections_are_made_again_only_after_another_job(report: LiveReport) -> None:
    module: Any = report.modules["one"]
    module.section = Mock(side_effect=Pending("a"))
    for done in ((), (), ("b",)):
        report._next = 0.0
        report.tick(progress(*done))
        report.tick(progress(*done))
    assert module.section.call_count == 2


def test_every_claim_names_its_section() -> None:
    """A claim is pending while the section of its differences has no table."""
    from experiments.reproduce import SECTIONS

    assert {claim.tables[-1].removesuffix("_differences") for claim in CLAIMS} <= set(SECTIONS)
