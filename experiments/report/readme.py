"""Write README.md's part about the committed runs: the larger one first, the other beside it.

`python -m experiments.report.readme` writes each run's `report.md` again from its `results.json`, and the part
between the markers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from experiments.report.pages import (
    Results,
    claims_table,
    introduction,
    name_of,
    render,
)
from txl_lightning.files import write_text
from txl_lightning.reporting import markdown_table

ROOT = Path(__file__).parents[2]
RESULTS = "experiments/results"
BEGIN = "<!-- committed runs begin -->\n"
END = "\n<!-- committed runs end -->"
LOSS_CLAIMS = (1, 2, 3, 4, 5, 6, 7)
EFFECTS = (
    "A verdict without a count applies to all comparisons of the claim. Where a cell has counts, "
    "the other comparisons are undecided. Percentages say how much lower the loss (in nats) is in "
    "the setting that wins in the paper, for claim 5 how much more the relative encoding gains; a "
    "range covers all comparisons. –: the paper has no losses to compare. In the test results "
    "below, lower is better, and ± is a standard error over seeds."
)


def committed() -> list[Results]:
    """Return `results.json` for the committed runs, the larger one first."""
    paths = [ROOT / RESULTS / name / "results.json" for name in ("night", "laptop")]
    return [json.loads(path.read_text("utf-8")) for path in paths]


def committed_part(runs: Sequence[Results]) -> str:
    """Return README.md's part without its markers: which claims held."""
    lines = []
    for results in runs:
        lines.append(f"- **{name_of(results).capitalize()}**: {introduction(results)}")
    return "\n\n".join([claims_beside(runs), EFFECTS, "\n".join(lines)])


def claims_beside(runs: Sequence[Results]) -> str:
    """Return a table with a row for each claim and a column for each run, in Markdown."""
    header = ["claim of the paper"] + [name_of(results) for results in runs] + ["paper"]
    _, rows_of_claims, _ = claims_table(runs[0]["claims"])
    rows = []
    for number in range(1, len(runs[0]["claims"]) + 1):
        claims = [results["claims"][number - 1] for results in runs]
        cells = [verdict(claim, shows_effect=number in LOSS_CLAIMS) for claim in claims]
        paper = "–"
        if number in LOSS_CLAIMS:
            paper = rows_of_claims[number - 1][4] or paper
        rows.append([f"{number}. {claims[0]['claim']}", *cells, paper])
    return markdown_table(header, rows, [False] * len(header)).rstrip("\n")


def verdict(claim: Results, shows_effect: bool) -> str:
    """Return whether a claim held in a run: in every comparison, in some, or in none."""
    marks = [row["mark"] for row in claim["rows"]]
    n_held = marks.count("✓")
    n_against = marks.count("✗")
    word = "undecided"
    if n_held == len(marks):
        word = "held"
    elif n_held > 0 or n_against > 0:
        word = f"{n_held} of {len(marks)} held"
        if n_against > 0:
            word += f", {n_against} against"
    if not shows_effect:
        return word
    _, rows, _ = claims_table([claim])
    effect = rows[0][3].partition(" [")[0]
    return f"{word}, {effect}"


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
    """Write the committed runs' reports, and their part in README.md."""
    runs = committed()
    for results in runs:
        folder = ROOT / RESULTS / results["profile"]
        write_text(folder / "report.md", render(results, folder))
    page = ROOT / "README.md"
    write_text(page, with_part(page.read_text("utf-8"), committed_part(runs)))


if __name__ == "__main__":
    main()
