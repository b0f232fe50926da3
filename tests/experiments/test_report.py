"""The report: its JSON, its pages, and the part of README that shows the committed runs."""

from __future__ import annotations

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from experiments.engine.profiles import PROFILES
from experiments.report import readme
from experiments.report.pages import introduction, render, table_of, time_of, write_report
from experiments.report.results import Effort, effort_before
from txl_lightning.files import write_json

HOSTILE = "<script>alert('x')</script> | *a* `b` [c](d) & \\"
LAPTOP = readme.ROOT / readme.RESULTS / "laptop"
COMMITTED = json.loads((LAPTOP / "results.json").read_text())


class Parsed(HTMLParser):
    """Text of `report.html`; parsing it asserts that tags close in order."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the figures of the committed run."""
    shutil.copytree(LAPTOP / "figures", tmp_path / "report/figures")
    return tmp_path / "report"


def all_tables(results: dict[str, Any]) -> list[dict[str, Any]]:
    return [table for section in results["sections"] for table in section["tables"]]


def test_the_page_shows_every_claim_table_and_figure(folder: Path) -> None:
    write_report(COMMITTED, folder)
    assert json.loads((folder / "results.json").read_text()) == COMMITTED
    page = Parsed((folder / "report.html").read_text())
    n_figures = sum(len(section.get("figures", ())) for section in COMMITTED["sections"])
    assert page.tags.count("img") == n_figures + 1
    for table in all_tables(COMMITTED):
        assert table["caption"] in page.text
        _, rows, _ = table_of(table)
        for row in rows:
            assert "\n".join(row) in page.text
    for claim in COMMITTED["claims"]:
        for row in claim["rows"]:
            assert row["title"] in page.text


@pytest.mark.parametrize("name", ["laptop", "night"])
def test_the_committed_reports_are_those_of_their_results(name: str, tmp_path: Path) -> None:
    committed = readme.ROOT / readme.RESULTS / name
    results = json.loads((committed / "results.json").read_text())
    page = (committed / "report.md").read_text()
    assert render(results, tmp_path) == page, "python -m experiments.report.readme"


def test_no_text_becomes_markup(folder: Path) -> None:
    first, *others = COMMITTED["sections"]
    hostile = {"note": HOSTILE, "sections": [{**first, "here": HOSTILE}, *others]}
    write_report({**COMMITTED, **hostile}, folder)
    html = Parsed((folder / "report.html").read_text())
    assert "script" not in html.tags
    assert html.text.count(HOSTILE) == 2


def test_an_unfinished_report_says_how_to_continue(tmp_path: Path) -> None:
    page = render({**COMMITTED, "finished": False}, tmp_path)
    continues = f"The same command continues: {COMMITTED['command']}"
    assert f"**Unfinished: 55 of 55 jobs are finished.** {continues}" in page
    assert f"has run for {time_of(COMMITTED)} on" in page


def test_time_and_calls_are_counted_over_one_report(tmp_path: Path) -> None:
    assert effort_before(tmp_path, set()) == Effort()
    results = {"finished": False, "runs": {"a": {}}, "seconds": {"wall": 5.0, "calls": 2}}
    write_json(tmp_path / "results.json", results)
    assert effort_before(tmp_path, {"a"}) == Effort(5.0, 2)
    assert effort_before(tmp_path, set()) == Effort()
    write_json(tmp_path / "results.json", {**results, "finished": True})
    assert effort_before(tmp_path, {"a"}) == Effort(5.0, 2)
    assert effort_before(tmp_path, {"b"}) == Effort()
    stopped = {**COMMITTED, "seconds": {"wall": 5400.0, "training": 60.0, "calls": 2}}
    assert "took 1.5 h in 2 sessions (it was interrupted and resumed) on" in introduction(stopped)


def test_a_smoke_run_judges_nothing(tmp_path: Path) -> None:
    profile = PROFILES["smoke"]
    results = {**COMMITTED, "note": profile.note, "verdicts": profile.verdicts}
    page = render(results, tmp_path)
    assert "numbers below say nothing about the paper" in page
    assert "Recurrence helps" not in page


def test_the_readme_shows_the_committed_runs() -> None:
    text = (readme.ROOT / "README.md").read_text()
    part = readme.committed_part(readme.committed())
    assert readme.with_part(text, part) == text, "python -m experiments.report.readme"
