"""Tables as Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[bool] | None = None) -> str:
    """A pipe table.

    Args:
        header: a title for each column.
        rows: a cell for each column, with pipes and line ends already escaped.
        right: which columns are aligned to the right; None: those whose cells are all numbers (or dashes).
    """
    cells = [[str(cell) for cell in row] for row in rows]

    def is_number(cell: str) -> bool:
        return (
            cell in ("", "–")
            or cell.replace("±", "").replace(".", "").replace(",", "").replace(" ", "").lstrip("-−+").isdigit()
        )

    if right is None:
        right = [all(is_number(row[i]) for row in cells) for i in range(len(header))]
    aligned = ["---:" if right_ else "---" for right_ in right]
    lines = [header, aligned, *cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
