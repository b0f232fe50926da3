"""The part of README.md that shows the committed runs: the larger one first, the other beside it.

`python -m experiments.report.readme` writes `report.md` of each run again from its `results.json`, and the part
between its markers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.arms import OFF, ON
from experiments.report.pages import RULE, SCALES, claims_table, introduction, render
from experiments.report.pictures import PNG
from experiments.sections import cell_text, unit_words
from txl_lightning.files import write_text
from txl_lightning.reporting import markdown_table

ROOT = Path(__file__).parents[2]
RESULTS = "experiments/results"
BEGIN, END = "<!-- committed runs begin -->\n", "\n<!-- committed runs end -->"
Results = Mapping[str, Any]


def committed() -> list[Results]:
    """Return the content of `results.json` of the committed runs, the larger one first."""
    paths = (ROOT / RESULTS / name / "results.json" for name in reversed(SCALES))
    return [json.loads(path.read_text("utf-8")) for path in paths if path.is_file()]


def part(runs: Sequence[Results]) -> str:
    """Return the part of README.md, without its markers."""
    first = runs[0]["profile"]
    paragraphs = [
        f'<img src="{RESULTS}/{first}/{PNG}" width="760" alt="Effect of each claim by tokens of training">',
        "\n".join(f"- **{run['profile'].capitalize()}.** {introduction(run)} {pair(_table_6(run))}" for run in runs),
        f"{RULE} ±: the standard error over seeds.",
        markdown_table(*beside(runs)).rstrip("\n"),
    ]
    return "\n\n".join(paragraphs)


def _table_6(results: Results) -> Mapping[str, Any]:
    tables = (table for section in results["sections"] for table in section.get("tables", ()))
    return next(table for table in tables if table["id"] == "table_6")


def pair(table_6: Mapping[str, Any]) -> str:
    """Return the test losses of the runs with and without recurrence in a sentence."""
    columns = [column for column in table_6["columns"] if column["key"] in ("init", "bpb")]
    with_it, without = (
        ", ".join(f"{cell_text(table_6['rows'][arm.key][c['key']])} {unit_words(c['unit'])}" for c in columns)
        for arm in (ON, OFF)
    )
    seeds = cell_text(table_6["rows"][ON.key]["seeds"])
    return f"Test loss (lower is better), seeds {seeds}: with recurrence {with_it}; without {without}."


def beside(runs: Sequence[Results]) -> tuple[list[str], list[list[str]], list[bool]]:
    """Return header, rows and alignment of the table of claims with the marks and effects of every run."""
    tables = [claims_table(run["claims"]) for run in runs]
    header, first, right = tables[0]
    rows = [
        [*row[:2], *(cell for _, found, _ in tables for cell in found[i][2:4]), row[4]] for i, row in enumerate(first)
    ]
    titles = [f"{run['profile']}: {title}" for run in runs for title in ("marks", "effect")]
    return [*header[:2], *titles, header[4]], rows, [*right[:2], *right[2:4] * len(runs), right[4]]


def with_part(page: str, part: str) -> str:
    """Return a page with another text between its markers, `BEGIN` and `END`.

    Raises:
        ValueError: it has no such markers.
    """
    before, after = page[: page.index(BEGIN) + len(BEGIN)], page[page.index(END) :]
    return before + part + after


def main() -> None:
    """Write the reports of the committed runs, and their parts in both pages."""
    runs = committed()
    for results in runs:
        folder = ROOT / RESULTS / results["profile"]
        write_text(folder / "report.md", render(results, folder).as_markdown())
    page = ROOT / "README.md"
    write_text(page, with_part(page.read_text("utf-8"), part(runs)))


if __name__ == "__main__":
    main()
