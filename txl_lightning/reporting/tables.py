"""Tables in Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Brackets are markup only before these characters, underscores only at the ends of a word. Elsewhere they are not
# escaped, to keep intervals and names readable in the source.
MARKUP = re.compile(r"[\\`*|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|\](?=[(\[:])|\[(?=[\^!])")
LINE_STARTS = re.compile(r"^([-+#=]+|\d+(?=[.)]))(?=[.)]?(\s|$))")  # marks of lists, headings and rules
ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def escape(value: object) -> str:
    """Return text as one line of Markdown that cannot become markup."""
    escaped = "".join(ENTITIES.get(sign, sign) for sign in str(value))
    line = " ".join(MARKUP.sub(r"\\\g<0>", escaped).split())
    return LINE_STARTS.sub(lambda found: f"{found[0]}\\" if found[0].isdigit() else f"\\{found[0]}", line)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[bool] | None = None) -> str:
    """Return a pipe table.

    Args:
        header: title of each column.
        rows: cells of each row; they are escaped, as titles are.
        right: columns to align to the right; None for those whose cells are all numbers or dashes.
    """
    if right is None:
        right = [all(_is_number(str(row[i])) for row in rows) for i in range(len(header))]
    lines = [[escape(cell) for cell in row] for row in (header, *rows)]
    lines.insert(1, ["---:" if right_ else "---" for right_ in right])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _is_number(cell: str) -> bool:
    """Return whether a cell is a number (also with a margin, `1.94 ± 0.01`), a dash or empty."""
    return cell in ("", "–") or re.sub("[±., ]", "", cell).lstrip("-−+").isdigit()
