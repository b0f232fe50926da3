"""Parts of README.md and docs/reproduction.md that show the committed laptop run.

`python -m experiments.report.readme` writes `report.md` of that run again from its `results.json`, and each part
between its markers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.arms import OFF, ON
from experiments.report.pages import RULE, Page, claims_table, introduction, render, summary, table_of
from experiments.report.pictures import CAPTION, PNG, courses
from experiments.sections import cell_text
from txl_lightning.files import write_text
from txl_lightning.reporting.tables import markdown_table

ROOT = Path(__file__).parents[2]
LAPTOP = "experiments/results/laptop"
UNITS = {"ppl": "in perplexity"}


def parts(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the part of each page, without its markers, by path of the page."""
    (table_6,) = (
        table for section in results["sections"] for table in section.get("tables", ()) if table["id"] == "table_6"
    )
    front = [
        f"{results['title']}. {introduction(results)}",
        pair(table_6),
        *summary(results["claims"]),
        markdown_table(*claims_table(results["claims"])).rstrip("\n"),
        f"{RULE} {results['note']}",
    ]
    if courses(results["claims"]):
        front += [f'<img src="{LAPTOP}/{PNG}" width="700" alt="Effect of each claim by tokens of training">', CAPTION]
    details = [
        f"{results['title']}. {results['note']} ± is the standard error over seeds.",
        markdown_table(*table_of(table_6)).rstrip("\n"),
    ]
    return {"README.md": "\n\n".join(front), "docs/reproduction.md": "\n\n".join(details)}


def pair(table_6: Mapping[str, Any]) -> str:
    """Return the test losses of the runs with and without recurrence in a sentence."""
    columns = [column for column in table_6["columns"] if column["key"] in ("init", "bpb")]
    with_it, without = (
        ", ".join(f"{cell_text(table_6['rows'][arm.key][c['key']])} {UNITS.get(c['unit'], c['unit'])}" for c in columns)
        for arm in (ON, OFF)
    )
    return f"Test loss with recurrence: {with_it}; without: {without} (± is the standard error over seeds)."


def with_part(page: str, part: str) -> str:
    """Return a page with another text between its markers, `<!-- laptop run begin -->` and `<!-- laptop run end -->`.

    Raises:
        ValueError: it has no such markers.
    """
    begin, end = "<!-- laptop run begin -->\n", "\n<!-- laptop run end -->"
    before, after = page[: page.index(begin) + len(begin)], page[page.index(end) :]
    return before + part + after


def main() -> None:
    """Write the report of the committed run, and its parts in both pages."""
    folder = ROOT / LAPTOP
    results = json.loads((folder / "results.json").read_text("utf-8"))
    page: Page = render(results, folder)
    write_text(folder / "report.md", page.as_markdown())
    for name, part in parts(results).items():
        write_text(ROOT / name, with_part((ROOT / name).read_text("utf-8"), part))


if __name__ == "__main__":
    main()
