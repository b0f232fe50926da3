"""Sections and tables of BENCHMARKS.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "BENCHMARKS.md"
HEADER = "# Benchmarks\n\nRepeat them with `make bench`, which rewrites its sections of this file.\n"


def spread(ratios: Sequence[float]) -> str:
    """Return the median, lowest and highest ratio as text."""
    digits = 2 if median(ratios) < 10 else 1
    return f"{median(ratios):.{digits}f} ({min(ratios):.{digits}f}–{max(ratios):.{digits}f})"


def aligned(rows: Sequence[Sequence[str]], n_left: int = 1) -> str:
    """Return a Markdown table with aligned columns.

    Args:
        rows: the header and the rows below it.
        n_left: number of first columns that hold words and align left.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [[*("-" * w for w in widths[:n_left]), *("-" * (w - 1) + ":" for w in widths[n_left:])]]
    for row in rows:
        left, right = zip(row[:n_left], widths, strict=False), zip(row[n_left:], widths[n_left:], strict=True)
        lines.append([*(cell.ljust(w) for cell, w in left), *(cell.rjust(w) for cell, w in right)])
    lines[0], lines[1] = lines[1], lines[0]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_section(path: Path, name: str, text: str) -> None:
    """Replace the text between the markers of a section, or append the section; the rest of the file stays.

    Raises:
        SystemExit: the end marker is missing; the file is unchanged.
    """
    begin_marker, end_marker = f"<!-- bench:{name} begin -->", f"<!-- bench:{name} end -->"
    page = path.read_text(encoding="utf-8") if path.exists() else HEADER
    before, begin, rest = page.partition(begin_marker)
    _, end, after = rest.partition(end_marker)
    if begin and not end:
        raise SystemExit(f"bench: {path} has {begin_marker} without {end_marker}; the file is unchanged")
    if not begin:
        before, after = before.rstrip() + "\n\n", "\n"
    path.write_text(f"{before}{begin_marker}\n{text}\n{end_marker}{after}", encoding="utf-8")
