"""Markdown tables."""

from __future__ import annotations

import re
from collections.abc import Sequence


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[bool] | None = None) -> str:
    """Return a pipe table.

    Args:
        header: title of each column.
        rows: cells of each row, with pipes and line ends already escaped.
        right: columns to align to the right; None for those whose cells are all numbers or dashes.
    """
    cells = [[str(cell) for cell in row] for row in rows]
    if right is None:
        right = [all(_is_number(row[i]) for row in cells) for i in range(len(header))]
    aligned = ["---:" if right_ else "---" for right_ in right]
    lines = [header, aligned, *cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _is_number(cell: str) -> bool:
    """Whether a cell is a number, with or without a margin (`1.94 ± 0.01`), a dash or empty."""
    return cell in ("", "–") or re.sub("[±., ]", "", cell).lstrip("-−+").isdigit()
