"""Parts of README.md and docs/reproduction.md that show the committed laptop run."""

import json
import shutil
from pathlib import Path

import pytest

from experiments.report import readme
from experiments.report.sections import decimal, duration
from experiments.report.verdicts import SIGNS

REPORT = readme.ROOT / readme.LAPTOP
RESULTS = json.loads((REPORT / "results.json").read_text())
PARTS = readme.parts(RESULTS, (REPORT / "report.md").read_text())


@pytest.mark.parametrize("page", PARTS)
def test_a_page_shows_the_committed_run(page: str) -> None:
    assert PARTS[page] in (readme.ROOT / page).read_text(), "python -m experiments.report.readme"


def test_the_readme_shows_run_claims_and_their_picture() -> None:
    front = PARTS["README.md"].replace("\u00a0", " ")
    for i, claim in enumerate(RESULTS["claims"], 1):
        digits = 1 if abs(claim["relative"]) < 100 else 0
        effect = f"{decimal(claim['relative'], digits, signed=True)} % ["
        assert f"| {i} | {SIGNS[claim['mark']]} | {claim['short']} | {effect}" in front
        theirs = claim["relative_paper"]
        assert theirs is None or f"| {decimal(theirs, 1 if abs(theirs) < 100 else 0, signed=True)} % |" in front
    assert "\n✓ holds · ✗ does not hold · ≈ within noise\n" in front
    assert front.count(" |\n") == len(RESULTS["claims"]) + 2
    run = RESULTS["runs"]["recurrence-relative-full_loss-seed1"]
    trainings = sum(run["command"] == "train" for run in RESULTS["runs"].values())
    machine, size = RESULTS["machine"], f"{run['parameters'] / 1e6:.1f}M parameters and {run['tokens']:,} tokens"
    assert f"took {duration(RESULTS['seconds']['wall'])} on {machine['cores']} cores of an" in front
    assert f"{machine['processor']}: {trainings} runs of {size} of training each" in front
    assert f'src="{readme.LAPTOP}/figures/claims.png"' in front
    assert (REPORT / "figures" / "claims.png").is_file()


def test_the_page_shows_table_6() -> None:
    page = PARTS[readme.DETAILS]
    (table,) = (t for section in RESULTS["sections"] for t in section["tables"] if t["id"] == "table_6")
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    assert len(lines) == len(table["rows"]) + 2
    for line, row in zip(lines[2:], table["rows"], strict=True):
        assert line.startswith(f"| {row['arm']['text']} | {row['init']['value']:.3f}")
    assert "(../experiments/results/laptop/report.md)" in page


def test_both_pages_get_their_parts_and_keep_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(REPORT, tmp_path / readme.LAPTOP, ignore=shutil.ignore_patterns("figures"))
    (tmp_path / "docs").mkdir()
    for name, part in PARTS.items():
        begin, *_, end = part.splitlines()
        (tmp_path / name).write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    assert readme.main() == 0
    for name, part in PARTS.items():
        assert (tmp_path / name).read_text() == f"before\n{part}\nafter\n"
    (tmp_path / "README.md").write_text("no markers")
    assert readme.main() == 2
