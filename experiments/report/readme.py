"""The part of README.md that shows the committed laptop run, made from its `results.json`.

`python -m experiments.report.readme` writes it between its markers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.report.markdown import pipe_table, results_table
from experiments.report.rendering import read_results
from experiments.report.view import SIGNS, duration, table_view

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "experiments" / "results" / "laptop"
BEGIN, END = "<!-- laptop run begin -->", "<!-- laptop run end -->"


def part(results: dict[str, Any]) -> str:
    """Command, time and hardware, Table 6, the claims and one figure."""
    folder = COMMITTED.relative_to(ROOT).as_posix()
    section = next(section for section in results["sections"] if section["id"] == "table_6")
    trainings = [run for run in results["runs"].values() if run["command"] == "train"]
    size = f"{trainings[0]['parameters'] / 1e6:.1f}M parameters and {trainings[0]['tokens']:,} bytes of training"
    machine = results["machine"]
    figure = section["figures"][0]
    claims = [[claim["claim"], f"{SIGNS[claim['mark']]} {claim['mark']}"] for claim in results["claims"]]
    return "\n".join(
        [
            BEGIN,
            f"`{results['command']}` took {duration(results['seconds']['wall'])} on {machine['cores']} cores of an "
            f"{machine['processor']}: {len(trainings)} runs of {size}, and their measurements. {results['note']}",
            f"[The whole report]({folder}/report.md) has every table and figure, with the rules behind the marks.",
            "",
            pipe_table(["what the paper says", "in this run"], claims),
            "",
            f"{section['title']} (mean and standard error over seeds):",
            "",
            results_table(table_view(section["tables"][0])),
            "",
            f"![{figure['alt']}]({folder}/{figure['png']})",
            END,
        ]
    )


def main() -> None:
    """Replace what stands between the markers."""
    path = ROOT / "README.md"
    before, _, rest = path.read_text().partition(BEGIN)
    path.write_text(before + part(read_results(COMMITTED / "results.json")) + rest.partition(END)[2])


if __name__ == "__main__":
    main()
