"""Code of the pages and of the notebook fits a column of 95 characters, so that nobody must scroll sideways."""

import json
from pathlib import Path

import pytest

from tests.docs.pages import FENCE, PAGES, ROOT, name_of

NOTEBOOK = ROOT / "examples/transformer_xl_in_ten_minutes.ipynb"
WIDTH = 95
PRINTED_WIDTH = 96  # of `text` blocks, which show what a command prints


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_on_a_page_is_narrow(page: Path) -> None:
    wide = []
    for _, language, code in FENCE.findall(page.read_text()):
        width = PRINTED_WIDTH if language == "text" else WIDTH
        wide += [line for line in code.splitlines() if len(line) > width]
    assert wide == []


def test_code_in_the_notebook_is_narrow() -> None:
    wide = []
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            lines = "".join(cell["source"]).splitlines()
            wide += [line for line in lines if len(line) > WIDTH]
    assert wide == []
