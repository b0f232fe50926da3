"""Parts of README.md and docs/reproduction.md that show the committed laptop run, made from its `results.json`.

`python -m experiments.report.readme` writes each part between its markers.
"""

from __future__ import annotations

import posixpath
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.report.claims_picture import ALT, FILE
from experiments.report.markdown import pipe_table, results_table
from experiments.report.rendering import read_results
from experiments.report.sections import Section, section_from_json
from experiments.report.view import SIGNS, claim_view, duration, table_view
from txl_lightning.errors import UserError
from txl_lightning.files import write_text

ROOT = Path(__file__).parents[2]
LAPTOP = "experiments/results/laptop"
RUN_MARKERS = ("<!-- laptop run begin -->", "<!-- laptop run end -->")
TABLES_MARKERS = ("<!-- laptop tables begin -->", "<!-- laptop tables end -->")
DETAILS = "docs/reproduction.md"


def run_part(results: dict[str, Any]) -> str:
    """Return the README's part: command, time and hardware; one picture; a line for each claim; links."""
    machine = results["machine"]
    trainings = [run for run in results["runs"].values() if run["command"] == "train"]
    size = f"{trainings[0]['parameters'] / 1e6:.1f}M parameters and {trainings[0]['tokens']:,} tokens of training each"
    rows = [claim_view(claim) for claim in results["claims"]]
    if all("effect" in claim for claim in results["claims"]):
        png, alt = FILE, ALT
        names = [claim.get("short", claim["claim"]) for claim in results["claims"]]
        cells = [
            [str(number), SIGNS[claim["mark"]], name, f"{row.relative} {row.relative_interval}".strip(), row.theirs]
            for number, (claim, name, row) in enumerate(zip(results["claims"], names, rows, strict=True), 1)
        ]
        claims = pipe_table(["", "", "claim of the paper", "effect here [95 % interval]", "in the paper"], cells)
        claims += "\n\n" + " · ".join(f"{sign} {mark}" for mark, sign in SIGNS.items())
    else:  # a run of an older version
        figure = _table_6(results).figures[0]
        png, alt = figure.png, figure.alt
        claims = pipe_table(["claim of the paper", "in this run"], [[row.claim, row.mark] for row in rows])
    return _between(
        RUN_MARKERS,
        f"`{results['command']}` took {duration(results['seconds']['wall'])} on {machine['cores']} cores of an "
        f"{machine['processor']}: {len(trainings)} runs of {size}, and their measurements.",
        f'<img src="{LAPTOP}/{png}" width="460" alt="{alt}">',
        claims,
        f"[Report]({LAPTOP}/report.md) with every table and figure · [Table 6 and how to reproduce it]({DETAILS})",
    )


def tables_part(results: dict[str, Any]) -> str:
    """Return the part of docs/reproduction.md: Table 6 and the note on its size."""
    section = _table_6(results)
    return _between(
        TABLES_MARKERS,
        f"{section.title} (mean and standard error over seeds). {results['note']}",
        results_table(table_view(section.tables[0])),
        f"All tables are in the [report]({posixpath.relpath(LAPTOP, posixpath.dirname(DETAILS))}/report.md).",
    )


PARTS: dict[str, tuple[tuple[str, str], Callable[[dict[str, Any]], str]]] = {
    "README.md": (RUN_MARKERS, run_part),
    DETAILS: (TABLES_MARKERS, tables_part),
}


def update(root: Path, results: dict[str, Any]) -> None:
    """Write the parts of both files between their markers.

    Raises:
        UserError: a file or one of its markers is missing; no file is changed then.
    """
    pages = {root / name: _replaced(root / name, *part, results) for name, part in PARTS.items()}
    for path, page in pages.items():
        write_text(path, page)


def main() -> int:
    """Update both files and print their names."""
    try:
        update(ROOT, read_results(ROOT / LAPTOP / "results.json"))
    except UserError as error:
        print(f"readme: {error}", file=sys.stderr)
        return 2
    print(f"written: {', '.join(PARTS)}")
    return 0


def _table_6(results: dict[str, Any]) -> Section:
    return next(section_from_json(section) for section in results["sections"] if section["id"] == "table_6")


def _between(markers: tuple[str, str], *paragraphs: str) -> str:
    begin, end = markers
    return "\n".join([begin, "\n\n".join(paragraphs), end])


def _replaced(
    path: Path, markers: tuple[str, str], part: Callable[[dict[str, Any]], str], results: dict[str, Any]
) -> str:
    begin, end = markers
    try:
        before, found_begin, rest = path.read_text("utf-8").partition(begin)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); it must exist and have '{begin}'") from error
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise UserError(f"{path}: must have '{begin}' and, after it, '{end}'")
    return before + part(results) + after


if __name__ == "__main__":
    sys.exit(main())
