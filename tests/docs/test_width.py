"""Code of the pages and of the notebook fits a column of 95 characters, so that nobody must scroll sideways."""

from pathlib import Path

import pytest

from tests.docs.pages import FENCE, PAGES, name_of
from tests.test_notebook import code_cells, read_stored

WIDTH = 95
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
