"""examples/transformer_xl_in_ten_minutes.ipynb: its cells run, and its stored output is of a whole run.

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
from tests.docs.pages import ROOT
from tests.run_notebook import run_notebook

NOTEBOOK = ROOT / "examples/transformer_xl_in_ten_minutes.ipynb"


def read_stored() -> dict[str, Any]:
    return json.loads(NOTEBOOK.read_text("utf-8"))


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def kinds_of_output(notebook: dict[str, Any]) -> list[list[str]]:
    """Return the kinds of the outputs of every code cell."""
    kinds = []
    for cell in code_cells(notebook):
        kinds.append([output["output_type"] for output in cell["outputs"]])
    return kinds


def check_results(notebook: dict[str, Any]) -> None:
    """Check what a run of 400 steps prints."""
    printed = ""
    for cell in code_cells(notebook):
        for output in cell["outputs"]:
            printed += "".join(output.get("text", []))
    bits = dict(re.findall(r"memory=(on|off): (\S+) bits per character after 400 steps", printed))
    assert float(bits["on"]) <= 1.15 * TEXT.entropy(48) / log(2)
    assert float(bits["off"]) >= 2.9
    assert re.search(r"memory=on: RECL (48|64) .*r = 1.0", printed)
    assert "memory=off: RECL 32 (r = 0.1), 32 (r = 0.5), 32 (r = 1.0)" in printed
    assert str(ROOT) not in printed
    assert "/tmp" not in printed


def test_the_stored_results_are_of_a_whole_run() -> None:
    stored = read_stored()
    assert NOTEBOOK.read_text("utf-8").count("STEPS = 400\\n") == 1
    assert str(kinds_of_output(stored)).count("display_data") == 4
    check_results(stored)


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(24, marks=pytest.mark.slow),
        pytest.param(400, marks=[pytest.mark.full, pytest.mark.timeout(900)]),
    ],
)
def test_the_notebook_runs_and_gives_its_stored_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(ROOT)
    source = NOTEBOOK.read_text("utf-8")
    notebook = tmp_path / "examples" / NOTEBOOK.name
    notebook.parent.mkdir()
    notebook.write_text(source.replace("STEPS = 400", f"STEPS = {steps}"), "utf-8")

    fresh = run_notebook(notebook)

    assert kinds_of_output(fresh) == kinds_of_output(read_stored())
    if steps == 400:
        check_results(fresh)
