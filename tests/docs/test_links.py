"""Links, lists of pages, generated blocks and Python examples of the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from experiments.arms import ENCODINGS
from tests.docs.pages import PAGES, ROOT, blocks, name_of, prose

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
ALL_PAGES = [*PAGES, ROOT / "BENCHMARKS.md", ROOT / "CHANGELOG.md"]
SUBJECTS = {page for page in PAGES if page.parent == ROOT / "docs"}


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_leads_somewhere() -> None:
    links = [(page, target) for page in ALL_PAGES for target in LINK.findall(prose(page))]
    for page, target in links:
        if target.startswith("http"):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        assert path.exists(), f"{name_of(page)}: {target}"
        assert not anchor or anchor in anchors(path), f"{name_of(page)}: {target}"


def test_the_readme_lists_every_page() -> None:
    assert len(SUBJECTS) >= 9
    assert {ROOT / target for target in LINK.findall((ROOT / "README.md").read_text())} >= SUBJECTS


def test_options_of_the_page_on_training_are_those_of_conf() -> None:
    page = (ROOT / "docs/training.md").read_text()
    for group in ("profile", "model", "memory", "data", "optimizer", "trainer", "logger", "experiment"):
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{group}` |")]
        for path in (ROOT / "conf" / group).glob("*.yaml"):
            assert re.search(rf"(?<![\w-]){path.stem}(?![\w-])", row), f"{group}={path.stem}"
    assert f"| `encoding` | {', '.join(ENCODINGS)} of the paper, others in [conf/encoding](../conf/encoding) |" in page
    assert set(ENCODINGS) <= {path.stem for path in (ROOT / "conf/encoding").glob("*.yaml")}


@pytest.mark.parametrize("page", ["README.md", "docs/evaluation.md"])
def test_examples_in_python_run(page: str) -> None:
    examples = [code for code in blocks(ROOT / page, "python") if code.startswith("import torch\nfrom txl_lightning")]
    examples = [code for code in examples if "@register_encoding" not in code]  # test_house_page runs it
    assert len(examples) == 1
    exec(compile(examples[0], page, "exec"), {})
