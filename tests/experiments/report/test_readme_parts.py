"""Parts of README.md and docs/reproduction.md that show the committed laptop run."""

from pathlib import Path

import pytest

from experiments.report import readme
from experiments.report.claims_picture import FILE
from experiments.report.rendering import read_results
from experiments.report.view import SIGNS, duration
from txl_lightning.errors import UserError

RESULTS = read_results(readme.ROOT / readme.LAPTOP / "results.json")


def pages(root: Path) -> dict[str, Path]:
    """Both files with old parts between their markers."""
    found = {name: root / name for name in readme.PARTS}
    for name, path in found.items():
        begin, end = readme.PARTS[name][0]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    return found


def test_both_files_get_their_parts_and_keep_the_rest(tmp_path: Path) -> None:
    found = pages(tmp_path)
    readme.update(tmp_path, RESULTS)
    texts = {name: path.read_text() for name, path in found.items()}
    for name, text in texts.items():
        assert text == f"before\n{readme.PARTS[name][1](RESULTS)}\nafter\n"
    readme.update(tmp_path, RESULTS)
    assert texts == {name: path.read_text() for name, path in found.items()}


def test_the_readme_shows_claims_and_their_picture_and_the_page_shows_table_6() -> None:
    front, page = readme.run_part(RESULTS), readme.tables_part(RESULTS)
    for claim in RESULTS["claims"]:
        assert f"| {SIGNS[claim['mark']]} | {claim['short']} | " in front
    assert "\n✓ holds · ✗ does not hold · ≈ within noise\n" in front
    assert front.count(" |\n") == len(RESULTS["claims"]) + 2
    run = RESULTS["runs"]["recurrence-relative-full_loss-seed1"]
    assert f"runs of {run['parameters'] / 1e6:.1f}M parameters and {run['tokens']:,} tokens of training each" in front
    trainings = sum(run["command"] == "train" for run in RESULTS["runs"].values())
    assert f"{RESULTS['machine']['processor']}: {trainings} runs" in front
    assert f"took {duration(RESULTS['seconds']['wall'])} on {RESULTS['machine']['cores']} cores" in front
    (table,) = (t for section in RESULTS["sections"] for t in section["tables"] if t["id"] == "table_6")
    first = next(iter(table["rows"]))
    line = next(line for line in page.splitlines() if line.startswith(f"| {first['arm']['text']} |"))
    assert f"| {first['init']['value']:.3f} ± " in line
    linked = {f"({readme.LAPTOP}/report.md)": "report.md", f'src="{readme.LAPTOP}/figures/claims.png"': FILE}
    assert all((readme.ROOT / readme.LAPTOP / path).is_file() and link in front for link, path in linked.items())
    assert (readme.ROOT / "docs" / "../experiments/results/laptop/report.md").resolve().is_file()
    assert "(../experiments/results/laptop/report.md)" in page


def test_a_run_shows_the_picture_of_its_claims_and_a_line_with_the_effect_of_each() -> None:
    numbers = {"effect": 0.1, "low": 0.05, "high": 0.15, "smallest": 0.05, "unit": "bpc", "relative": 4.2}
    numbers |= {"relative_low": 2.1, "relative_high": 6.3, "relative_paper": 2.7}
    claims = [{**claim, **numbers} for claim in RESULTS["claims"]]
    front = readme.run_part({**RESULTS, "claims": claims}).replace("\u00a0", " ")
    assert f'<img src="{readme.LAPTOP}/figures/claims.png" width="460" alt="' in front
    assert front.count("| +4.2 % [+2.1, +6.3] | +2.7 % |\n") == len(claims) == 10


@pytest.mark.parametrize("name", readme.PARTS)
def test_a_missing_file_or_marker_is_named_and_nothing_is_written(name: str, tmp_path: Path) -> None:
    found = pages(tmp_path)
    found[name].write_text("no markers")
    before = {path: path.read_text() for path in found.values()}
    with pytest.raises(UserError, match=f"{name}: must have '<!-- laptop"):
        readme.update(tmp_path, RESULTS)
    assert before == {path: path.read_text() for path in found.values()}
    found[name].unlink()
    with pytest.raises(UserError, match=f"{name} cannot be read"):
        readme.update(tmp_path, RESULTS)


def test_the_command_reports_a_missing_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = pages(tmp_path)
    results = tmp_path / readme.LAPTOP / "results.json"
    results.parent.mkdir(parents=True)
    results.write_bytes((readme.ROOT / readme.LAPTOP / "results.json").read_bytes())
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    assert readme.main() == 0
    found[readme.DETAILS].unlink()
    assert readme.main() == 2
    assert "docs/reproduction.md cannot be read" in capsys.readouterr().err
