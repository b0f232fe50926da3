"""The part of README.md that shows the committed runs: the larger one first, the other beside it.

`python -m experiments.report.readme` writes `report.md` of each run again from its `results.json`, and the part
between its markers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from experiments.report.pages import (
    RULE,
    Results,
    TextTable,
    claims_table,
    introduction,
    name_of,
    render,
)
from experiments.report.pictures import PNG
from txl_lightning.files import write_text
from txl_lightning.reporting import markdown_table

ROOT = Path(__file__).parents[2]
RESULTS = "experiments/results"
BEGIN = "<!-- committed runs begin -->\n"
END = "\n<!-- committed runs end -->"


def committed() -> list[Results]:
    """Return the content of `results.json` of the committed runs, the larger one first."""
    paths = [ROOT / RESULTS / name / "results.json" for name in ("night", "laptop")]
    return [json.loads(path.read_text("utf-8")) for path in paths]


def committed_part(runs: Sequence[Results]) -> str:
    """Return the part of README.md, without its markers."""
    picture = f"{RESULTS}/{runs[0]['profile']}/{PNG}"
    lines = []
    for results in runs:
        name = name_of(results).capitalize()
        lines.append(f"- **{name}.** {introduction(results)}")
    paragraphs = [
        f'<img src="{picture}" width="760" alt="Effect of each claim by tokens of training">',
        "\n".join(lines),
        f"{RULE} ±: the standard error over seeds.",
        markdown_table(*beside(runs)).rstrip("\n"),
    ]
    return "\n\n".join(paragraphs)


def beside(runs: Sequence[Results]) -> TextTable:
    """Return the table of claims with the marks and effects of every run."""
    header = ["", "claim of the paper"]
    right = [True, False]
    _, first_rows, _ = claims_table(runs[0]["claims"])
    rows = [row[:2] for row in first_rows]
    for results in runs:
        name = name_of(results)
        header += [f"{name}: marks", f"{name}: effect"]
        right += [False, True]
        _, rows_of_run, _ = claims_table(results["claims"])
        for row, row_of_run in zip(rows, rows_of_run, strict=True):
            row += row_of_run[2:4]
    for row, first_row in zip(rows, first_rows, strict=True):
        row.append(first_row[4])
    header.append("effect in the paper")
    right.append(True)
    return header, rows, right


def with_part(page: str, part: str) -> str:
    """Return a page with another text between its markers, `BEGIN` and `END`.

    Raises:
        ValueError: it has no such markers.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError("the page has no markers")
    return before + begin + part + end + after


def main() -> None:
    """Write the reports of the committed runs, and their part in README.md."""
    runs = committed()
    for results in runs:
        folder = ROOT / RESULTS / results["profile"]
        write_text(folder / "report.md", render(results, folder))
    page = ROOT / "README.md"
    write_text(page, with_part(page.read_text("utf-8"), committed_part(runs)))


if __name__ == "__main__":
    main()
