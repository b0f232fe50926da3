"""Run the code cells of a notebook in this process and store their outputs; needs no Jupyter.

python -m tests.run_notebook examples/transformer_xl_in_ten_minutes.ipynb
"""

from __future__ import annotations

import base64
import io
import json
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def run_notebook(path: Path) -> dict[str, Any]:
    """Return the notebook with new outputs: text, and figures as PNG.

    Cells run in the folder of the notebook, as in Jupyter. Only plain Python runs: no lines that
    begin with % or !.

    Args:
        path: notebook of format 4.
    """
    notebook: dict[str, Any] = json.loads(path.read_text("utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    number = 0
    before = Path.cwd()
    os.chdir(path.parent)
    try:
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                number += 1
                cell["execution_count"] = number
                cell["outputs"] = _run_cell("".join(cell["source"]), f"cell {number}", names)
    finally:
        os.chdir(before)
    return notebook


def _run_cell(code: str, name: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(code, name, "exec"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        lines = printed.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": lines})
    for number in plt.get_fignums():
        outputs.append(_display(plt.figure(number)))
    plt.close("all")
    return outputs


def _display(figure: plt.Figure) -> dict[str, Any]:
    picture = io.BytesIO()
    figure.savefig(picture, format="png", bbox_inches="tight", metadata={"Software": None})
    encoded = base64.b64encode(picture.getvalue()).decode()
    data = {"image/png": encoded, "text/plain": ["<Figure>"]}
    return {"output_type": "display_data", "data": data, "metadata": {}}


if __name__ == "__main__":
    notebook_path = Path(sys.argv[1]).resolve()
    result = run_notebook(notebook_path)
    notebook_path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8")
