"""examples/transformer_xl_in_ten_minutes.ipynb: its cells run, and its output is of a whole run.

The cells run as plain Python, without Jupyter; `python -m tests.run_notebook NOTEBOOK` writes its output again.
"""

import json
import re
import tempfile
from math import log
from pathlib import Path
from typing import Any

import pytest

from examples.recall_oracle import TEXT
from tests.run_notebook import run_notebook

EXAMPLES = Path(__file__).parent.parent / "examples"
NOTEBOOK = EXAMPLES / "transformer_xl_in_ten_minutes.ipynb"


def kinds_of_output(notebook: dict[str, Any]) -> list[list[str]]:
    """Kinds of the outputs of every code cell."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [[output["output_type"] for output in cell["outputs"]] for cell in cells]


@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_notebook_runs_and_its_pictures_are_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    stored = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    sources = ["".join(cell["source"]) for cell in stored["cells"] if cell["cell_type"] == "code"]
    assert sum(source.count("STEPS = 400\n") for source in sources) == 1
    fresh = run_notebook(NOTEBOOK)
    assert kinds_of_output(fresh) == kinds_of_output(stored)
    assert sum(kinds.count("display_data") for kinds in kinds_of_output(stored)) == 4
    for notebook in (stored, fresh):
        outputs = [out for cell in notebook["cells"] for out in cell.get("outputs", [])]
        printed = "".join(text for out in outputs for text in out.get("text", []))
        bits = dict(re.findall(r"memory=(on|off): (\S+) bits per character after 400 steps", printed))
        assert float(bits["on"]) <= 1.15 * TEXT.entropy(48) / log(2)
        assert float(bits["off"]) >= 2.9
        assert re.search(r"memory=on: RECL (48|64) .*r = 1.0", printed)
        assert "memory=off: RECL 32 (r = 0.1), 32 (r = 0.5), 32 (r = 1.0)" in printed
        assert str(EXAMPLES.parent) not in printed
        assert "/tmp" not in printed
