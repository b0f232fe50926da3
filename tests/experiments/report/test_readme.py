"""Parts of README.md and docs/reproduction.md that show the committed laptop run."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from experiments.engine.profiles import Setup
from experiments.report import readme
from experiments.report.pages import write_report
from experiments.report.sections import duration
from tests.experiments.report.sample_claim import claim

REPORT = readme.ROOT / readme.LAPTOP
COMMITTED = json.loads((REPORT / "results.json").read_text())
SCHEMA = json.loads((readme.ROOT / "experiments/report/results.schema.json").read_text())


@pytest.fixture(scope="module")
def written(results: dict[str, Any], finished: Setup) -> dict[str, Any]:
    """`results.json` of the sample, with a claim for each mark; `report.md` is beside it."""
    claims = [claim(mark) for mark in ("holds", "does not hold", "within noise", "not tested")]
    write_report({**results, "claims": claims}, finished.directory)
    found: dict[str, Any] = json.loads((finished.directory / "results.json").read_text())
    return found


@pytest.fixture(scope="module")
def parts(written: dict[str, Any], finished: Setup) -> dict[str, str]:
    return readme.parts(written, (finished.directory / "report.md").read_text())


@pytest.mark.skipif(
    COMMITTED["schema_version"] != SCHEMA["properties"]["schema_version"]["const"],
    reason="the committed run has an earlier schema",
)
@pytest.mark.parametrize("page", ["README.md", readme.DETAILS])
def test_a_page_shows_the_committed_run(page: str) -> None:
    shown = readme.parts(COMMITTED, (REPORT / "report.md").read_text())
    assert shown[page] in (readme.ROOT / page).read_text(), "python -m experiments.report.readme"


def test_the_readme_shows_run_claims_and_their_pictures(written: dict[str, Any], parts: dict[str, str]) -> None:
    front = parts["README.md"].replace("\u00a0", " ")
    for i, (sign, one) in enumerate(zip("✓✗≈–", written["claims"], strict=True), 1):
        assert f"| {i} | {sign} | {one['short']} | +4.2 % [+3.2, +5.2] | +2.7 % |" in front
    assert "\n✓ holds · ✗ does not hold · ≈ within noise · – not tested\n" in front
    assert "\n- 2 ✗ short does not hold: Why it does not hold.\n- 3 ≈ short within noise: " in front
    counted = "1 of 4 claims hold, 1 does not hold, 1 is within noise, 1 is not tested; 1 of 4 parts hold"
    assert f"**{counted}.**" in front
    run = written["runs"]["recurrence-relative-full_loss-seed1"]
    trainings = sum(run["command"] == "train" for run in written["runs"].values())
    machine, size = written["machine"], f"{run['parameters'] / 1e6:.1f}M parameters on {run['tokens']:,} tokens each"
    assert f"took {duration(written['seconds']['wall'])} on {machine['cores']} cores of an" in front
    assert f"{machine['processor']}. It trained {trainings} models of {size}" in front
    for picture in ("claims", "overview"):
        assert f'src="{readme.LAPTOP}/figures/{picture}.png"' in front


def test_the_page_shows_table_6(written: dict[str, Any], parts: dict[str, str]) -> None:
    page = parts[readme.DETAILS]
    (table,) = (t for section in written["sections"] for t in section["tables"] if t["id"] == "table_6")
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    assert len(lines) == len(table["rows"]) + 2
    for line, row in zip(lines[2:], table["rows"], strict=True):
        assert line.startswith(f"| {row['arm']['text']} | {row['init']['value']:.3f}")
    assert "(../experiments/results/laptop/report.md)" in page


def test_both_pages_get_their_parts_and_keep_the_rest(
    parts: dict[str, str], finished: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / readme.LAPTOP).mkdir(parents=True)
    for name in ("results.json", "report.md"):
        shutil.copy(finished.directory / name, tmp_path / readme.LAPTOP)
    (tmp_path / "docs").mkdir()
    for name, part in parts.items():
        begin, *_, end = part.splitlines()
        (tmp_path / name).write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    assert readme.main() == 0
    for name, part in parts.items():
        assert (tmp_path / name).read_text() == f"before\n{part}\nafter\n"
    (tmp_path / "README.md").write_text("no markers")
    assert readme.main() == 2
