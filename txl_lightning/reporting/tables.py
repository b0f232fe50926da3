"""Tables as Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A pipe table; columns whose cells are all numbers (or dashes) are aligned to the right."""
    cells = [[str(cell) for cell in row] for row in rows]

    def is_number(cell: str) -> bool:
        return (
            cell in ("", "–")
            or cell.replace("±", "").replace(".", "").replace(",", "").replace(" ", "").lstrip("-−+").isdigit()
        )

    aligned = ["---:" if all(is_number(row[i]) for row in cells) else "---" for i in range(len(header))]
    lines = [header, aligned, *cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
