"""Links, lists of pages and Python examples of the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from experiments.arms import ENCODINGS
from tests.docs.pages import PAGES, README, ROOT, blocks, name_of, prose

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
ALL_PAGES = [*PAGES, ROOT / "BENCHMARKS.md", ROOT / "CHANGELOG.md"]
GROUPS = (
    "profile",
    "model",
    "encoding",
    "memory",
    "data",
    "optimizer",
    "trainer",
    "logger",
    "experiment",
)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", prose(page), re.M):
        words = re.sub(r"[^\w\- ]", "", heading.lower())
        found.add(words.replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", ALL_PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in LINK.findall(prose(page)):
        if target.startswith("http"):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        assert path.exists(), target
        if anchor:
            assert anchor in anchors(path), target


def test_the_readme_lists_every_page() -> None:
    linked = {link.partition("#")[0] for link in LINK.findall(README.read_text())}
    for page in (ROOT / "docs").glob("*.md"):
        assert name_of(page) in linked


@pytest.mark.parametrize("group", GROUPS)
def test_the_page_on_training_lists_every_choice_of_a_group(group: str) -> None:
    page = (ROOT / "docs/training.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith(f"| `{group}` |")]
    for path in (ROOT / "conf" / group).glob("*.yaml"):
        assert re.search(rf"(?<![\w-]){path.stem}(?![\w-])", row), path.stem


def test_the_page_on_training_lists_the_encodings_of_the_paper() -> None:
    page = (ROOT / "docs/training.md").read_text()
    *first, last = ENCODINGS
    assert f"| `encoding` | the paper's {', '.join(first)} and {last};" in page


@pytest.mark.parametrize("page", ["README.md", "docs/evaluation.md"])
def test_the_example_in_python_runs(page: str) -> None:
    examples = [
        code
        for code in blocks(ROOT / page, "python")
        if code.startswith("import torch\nfrom txl_lightning")
    ]
    examples = [code for code in examples if "@register_encoding" not in code]
    (example,) = examples
    exec(compile(example, page, "exec"), {})
