"""Parts of README.md and docs/reproduction.md that show the committed laptop run.

`python -m experiments.report.readme` writes each part between its markers.
"""

from __future__ import annotations

import json
import posixpath
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.report.pages import escape, pipe_table
from experiments.report.pictures import CLAIMS_ALT, CLAIMS_FILE, OVERVIEW_ALT, OVERVIEW_FILE
from experiments.report.sections import duration
from experiments.report.verdicts import SIGNS, claim_text, counts, failures, mark_of
from txl_lightning.files import write_text

ROOT = Path(__file__).parents[2]
LAPTOP = "experiments/results/laptop"
DETAILS = "docs/reproduction.md"


def parts(results: Mapping[str, Any], markdown: str) -> dict[str, str]:
    """Return the part of each page, with its markers, by path of the page.

    Args:
        results: `results.json` of the run.
        markdown: `report.md` of the run.
    """
    return {
        "README.md": _marked("laptop run", _run(results)),
        DETAILS: _marked("laptop tables", _table_6(results, markdown)),
    }


def main() -> int:
    """Write the parts into both pages and print their names; status 2 if a page lacks its markers."""
    report = ROOT / LAPTOP
    found = parts(json.loads((report / "results.json").read_text("utf-8")), (report / "report.md").read_text("utf-8"))
    pages = {}
    for name, part in found.items():
        begin, *_, end = part.splitlines()
        before, found_begin, rest = (ROOT / name).read_text("utf-8").partition(begin)
        _, found_end, after = rest.partition(end)
        if not found_begin or not found_end:
            print(f"readme: {name}: must have '{begin}' and, after it, '{end}'", file=sys.stderr)
            return 2
        pages[name] = before + part + after
    for name, page in pages.items():
        write_text(ROOT / name, page)
    print(f"written: {', '.join(pages)}")
    return 0


def _run(results: Mapping[str, Any]) -> list[str]:
    """Command, time and hardware; the counts; two pictures; a line for each claim; why some fail; links."""
    machine, claims, rows = results["machine"], results["claims"], []
    trainings = [run for run in results["runs"].values() if run["command"] == "train"]
    size = f"{trainings[0]['parameters'] / 1e6:.1f}M parameters on {trainings[0]['tokens']:,} tokens each"
    for number, claim in enumerate(claims, 1):
        text = claim_text(claim)
        effect = f"{text['relative']} {text['relative_interval']}".strip()
        rows.append([str(number), SIGNS[mark_of(claim)], claim["short"], effect, text["theirs"]])
    numbers = {claim["id"]: number for number, claim in enumerate(claims, 1)}
    pictures = ((OVERVIEW_FILE, OVERVIEW_ALT), (CLAIMS_FILE, CLAIMS_ALT))
    why = [
        f"- {numbers[c['id']]} {SIGNS[mark]} {escape(c['short'])}: {escape(said)}" for c, mark, said in failures(claims)
    ]
    return [
        f"`{results['command']}` took {duration(results['seconds']['wall'])} on {machine['cores']} cores of an "
        f"{machine['processor']}. It trained {len(trainings)} models of {size}, and measured them. "
        f"**{counts(claims)}.**",
        "\n".join(f'<img src="{LAPTOP}/{file}" width="460" alt="{alt}">' for file, alt in pictures),
        pipe_table(["", "", "claim of the paper", "effect here [95 % interval]", "in the paper"], rows),
        " · ".join(f"{sign} {mark}" for mark, sign in SIGNS.items() if mark != "pending"),
        "Effects are in percent, positive if the claim is right; of losses: of the loss that should be higher. "
        "A claim of several parts shows the part that supports it least.",
        *(["\n".join(why)] if why else []),
        f"[Report]({LAPTOP}/report.md) with all tables, and Figures 3 to 7 (1 and 2 are drawings of the model) · "
        f"[Table 6 and how to reproduce it]({DETAILS})",
    ]


def _table_6(results: Mapping[str, Any], markdown: str) -> list[str]:
    """Table 6 as the report has it, and the note on its size."""
    (section,) = (section for section in results["sections"] if section["id"] == "table_6")
    _, _caption, table, *_ = markdown.partition('<a id="table-table_6"></a>')[2].split("\n\n")
    return [
        f"{section['title']} (mean and standard error over seeds). {results['note']}",
        table,
        f"All tables are in the [report]({posixpath.relpath(LAPTOP, posixpath.dirname(DETAILS))}/report.md).",
    ]


def _marked(name: str, paragraphs: list[str]) -> str:
    text = "\n\n".join(paragraphs)
    return f"<!-- {name} begin -->\n{text}\n<!-- {name} end -->"


if __name__ == "__main__":
    sys.exit(main())
