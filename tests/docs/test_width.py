"""Code on the pages and in the notebook has at most 95 columns; README is a front page."""

from pathlib import Path

import pytest

from tests.docs.pages import FENCE, PAGES, ROOT, name_of
from tests.test_notebook import code_cells, read_stored

WIDTH = 95
README_LINES = 120
PRINTED_WIDTH = 96  # of `text` blocks, which show what a command prints


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_on_a_page_is_narrow(page: Path) -> None:
    for _, language, code in FENCE.findall(page.read_text()):
        limit = PRINTED_WIDTH if language == "text" else WIDTH
        for line in code.splitlines():
            assert len(line) <= limit, line


def test_code_in_the_notebook_is_narrow() -> None:
    for cell in code_cells(read_stored()):
        for line in cell["source"]:
            assert len(line.rstrip()) <= WIDTH, line


def test_readme_is_a_front_page() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= README_LINES
