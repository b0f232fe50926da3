"""examples/transformer_xl_in_ten_minutes.ipynb: its cells run, and its output is of a whole run.

The cells run as plain Python by `examples/run_notebook.py`, without Jupyter.
"""

import json
import runpy
import tempfile
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
NOTEBOOK = EXAMPLES / "transformer_xl_in_ten_minutes.ipynb"
FEW_STEPS = 60
run_notebook = runpy.run_path(str(EXAMPLES / "run_notebook.py"))["run_notebook"]


def kinds_of_output(notebook: dict[str, Any]) -> list[list[str]]:
    """Kinds of the outputs of every code cell."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [[output["output_type"] for output in cell["outputs"]] for cell in cells]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_notebook_runs_and_its_pictures_are_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    stored = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    sources = ["".join(cell["source"]) for cell in stored["cells"] if cell["cell_type"] == "code"]
    assert sum(source.count("STEPS = 600\n") for source in sources) == 1
    fresh = run_notebook(NOTEBOOK, lambda source: source.replace("STEPS = 600\n", f"STEPS = {FEW_STEPS}\n"))
    assert kinds_of_output(fresh) == kinds_of_output(stored)
    assert sum(kinds.count("display_data") for kinds in kinds_of_output(stored)) == 4
    printed = [
        text for cell in stored["cells"] for output in cell.get("outputs", []) for text in output.get("text", [])
    ]
    assert any("after 600 steps" in line for line in printed)
    assert not any(str(EXAMPLES.parent) in line or "/tmp" in line for line in printed)
