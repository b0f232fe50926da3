"""Tables in Markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[bool] | None = None) -> str:
    """Return a pipe table.

    Args:
        header: title of each column.
        rows: cells of each row, of one line each; a pipe that is not escaped yet is escaped.
        right: columns to align to the right; None for those whose cells are all numbers or dashes.
    """
    cells = [[re.sub(r"(?<!\\)\|", r"\|", str(cell)) for cell in row] for row in rows]
    if right is None:
        right = [all(_is_number(row[i]) for row in cells) for i in range(len(header))]
    aligned = ["---:" if right_ else "---" for right_ in right]
    lines = [header, aligned, *cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


LATEX_SIGNS = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "≥": r"$\geq$",
    "−": "$-$",
    "–": "--",
    **{sign: f"${sign}$" for sign in "<>|"},
}


def latex_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a tabular of the package booktabs, the first column to the left, the others to the right.

    Args:
        header: title of each column.
        rows: cells of each row, as plain text.
    """
    lines = [r" & ".join(_latex(str(cell)) for cell in row) + r" \\" for row in (header, *rows)]
    # After a line end, `[` and `*` would be its arguments.
    lines = [f"{{}}{line}" if line.startswith(("[", "*")) else line for line in lines]
    columns = "l" + "r" * (len(header) - 1)
    body = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"]
    return "\n".join([*body, r"\end{tabular}", ""])


def _latex(cell: str) -> str:
    return "".join(LATEX_SIGNS.get(sign, sign) for sign in cell)


def _is_number(cell: str) -> bool:
    """Return whether a cell is a number (also with a margin, `1.94 ± 0.01`), a dash or empty."""
    return cell in ("", "–") or re.sub("[±., ]", "", cell).lstrip("-−+").isdigit()
