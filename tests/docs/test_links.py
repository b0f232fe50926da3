"""Links, tables of contents, generated blocks and Python examples of the documentation."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from experiments.report.view import SIGNS
from tests.docs.pages import PAGES, ROOT, between_markers, blocks, name_of, prose

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
RESULTS = json.loads((ROOT / "experiments/results/laptop/results.json").read_text())
ALL_PAGES = [*PAGES, ROOT / "BENCHMARKS.md", ROOT / "CHANGELOG.md"]
SUBJECTS = {page for page in PAGES if page.parent == ROOT / "docs"} - {ROOT / "docs/README.md"}


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", ALL_PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in LINK.findall(prose(page)):
        if target.startswith("http"):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), target


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_long_page_has_a_table_of_contents(page: Path) -> None:
    text = page.read_text()
    linked = [target[1:] for target in LINK.findall(text) if target.startswith("#")]
    titles = re.findall(r"^## (.*)$", prose(page), re.M)
    sections = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
    if len(text.splitlines()) > 70 and name_of(page) != "README.md":
        assert [target for target in dict.fromkeys(linked) if target in sections] == sections


def test_the_readme_is_a_front_page() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 180


@pytest.mark.parametrize("page", ["README.md", "docs/README.md"])
def test_tables_of_contents_have_every_page(page: str) -> None:
    targets = {(ROOT / page).parent / target for target in LINK.findall((ROOT / page).read_text())}
    assert len(SUBJECTS) >= 9
    assert targets >= SUBJECTS


def test_the_readme_shows_the_claims_of_the_committed_run() -> None:
    block = between_markers("README.md")
    lines = block.splitlines()
    for claim in RESULTS["claims"]:
        assert f"| {claim['claim']} | {SIGNS[claim['mark']]} {claim['mark']} |" in lines
    assert RESULTS["command"] in block
    assert "![" in block


def test_the_page_on_reproduction_shows_table_6_of_the_committed_run() -> None:
    rows = [line.split(" | ") for line in between_markers("docs/reproduction.md").splitlines()]
    shown = {cells[0].lstrip("| "): " ".join(cells[1:]) for cells in rows}
    (table,) = [t for section in RESULTS["sections"] for t in section["tables"] if t["id"] == "table_6"]
    for row in table["rows"]:
        for key in ("init", "best", "paper_init", "paper_best"):
            assert f"{row[key]['value']:.{row[key]['digits']}f}" in shown[row["arm"]["text"]]


def test_options_of_the_page_on_training_are_those_of_conf() -> None:
    page = (ROOT / "docs/training.md").read_text()
    for group in ("profile", "model", "encoding", "memory", "data", "optimizer", "trainer", "logger", "experiment"):
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{group}` |")]
        for path in (ROOT / "conf" / group).glob("*.yaml"):
            assert re.search(rf"(?<![\w-]){path.stem}(?![\w-])", row), f"{group}={path.stem}"


@pytest.mark.parametrize("page", ["README.md", "docs/evaluation.md"])
def test_examples_in_python_run(page: str) -> None:
    examples = [code for code in blocks(ROOT / page, "python") if code.startswith("import torch\nfrom txl_lightning")]
    assert len(examples) == 1
    exec(compile(examples[0], page, "exec"), {})
