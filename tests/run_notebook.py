"""Run the code cells of a notebook in this process and store what they print and draw; needs no Jupyter.

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

    Cells run in the folder of the notebook, as in Jupyter. Only plain Python runs: no lines that begin with % or !.

    Args:
        path: notebook of format 4.
    """
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    before = Path.cwd()
    os.chdir(path.parent)
    try:
        for number, cell in enumerate(cells, start=1):
            printed = io.StringIO()
            with redirect_stdout(printed):
                exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
            cell["execution_count"], cell["outputs"] = number, [*_text(printed.getvalue()), *_figures()]
    finally:
        os.chdir(before)
    return notebook


def _text(printed: str) -> list[dict[str, Any]]:
    lines = printed.splitlines(keepends=True)
    return [{"output_type": "stream", "name": "stdout", "text": lines}] if lines else []


def _figures() -> list[dict[str, Any]]:
    found = []
    for number in plt.get_fignums():
        picture = io.BytesIO()
        plt.figure(number).savefig(picture, format="png", bbox_inches="tight", metadata={"Software": None})
        data = {"image/png": base64.b64encode(picture.getvalue()).decode(), "text/plain": ["<Figure>"]}
        found.append({"output_type": "display_data", "data": data, "metadata": {}})
    plt.close("all")
    return found


if __name__ == "__main__":
    notebook_path = Path(sys.argv[1]).resolve()
    result = run_notebook(notebook_path)
    notebook_path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
