"""Claims as both pages show them: a line for each mark, one row per claim, the rule once, and tables for phones."""

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.report.cells import Number, Text
from experiments.report.claims_picture import FILE
from experiments.report.rendering import MOST_STACKED, render_again, write_report
from experiments.report.sections import Section, Table, label, ours, to_json
from experiments.report.view import FORMER_RULE, RULE, claim_view, summary
from tests.experiments.report.sample_results import sample_results


def claim(mark: str, relative: float = 4.2, paper: float | None = 2.7) -> dict[str, Any]:
    """Claim named after its mark, with an effect of 0.1 bpc."""
    return {
        "id": f"{mark} {relative:g}".replace(" ", "_"),
        "short": f"short {mark}",
        "claim": f"The claim {mark}.",
        "paper": "Table 6: numbers",
        "rule": "One minus other.",
        "evidence": "one − other: +0.100 bpc",
        "mark": mark,
        "effect": 0.1,
        "low": 0.05,
        "high": 0.15,
        "smallest": 0.05,
        "unit": "bpc",
        "relative": relative,
        "relative_low": relative - 1,
        "relative_high": relative + 1,
        "relative_paper": paper,
        "part": "one − other",
        "tables": ["table_6"],
    }


CLAIMS = [claim("within noise"), claim("holds", -153.0, None), claim("within noise", 1.0)]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Both pages, with spaces for no-break spaces."""
    directory = tmp_path_factory.mktemp("claims")
    write_report(sample_results(directory) | {"claims": CLAIMS}, directory)
    assert (directory / FILE).is_file()
    html, markdown = (directory / name for name in ("report.html", "report.md"))
    return html.read_text().replace("\u00a0", " "), markdown.read_text().replace("\u00a0", " ")


def test_the_summary_has_a_line_for_each_mark_that_a_claim_has() -> None:
    lines = [(mark, counted, named.replace("\u00a0", " ")) for mark, counted, named in summary(CLAIMS)]
    assert lines == [
        ("holds", "1 of 3 claims holds", "short holds (−153 %)"),
        (
            "within noise",
            "2 of 3 claims are within noise",
            "short within noise (+4.2 %; paper +2.7 %); short within noise (+1.0 %; paper +2.7 %)",
        ),
    ]
    assert summary([claim("does not hold")] * 2)[0][1] == "2 of 2 claims do not hold"


def test_a_row_has_effect_interval_smallest_effect_and_the_papers_effect() -> None:
    view = claim_view(claim("holds"))
    shown = (view.effect, view.interval, view.smallest, view.relative, view.relative_interval, view.theirs, view.mark)
    assert [text.replace("\u00a0", " ") for text in shown] == [
        *("+0.100 bpc", "[+0.050, +0.150]", "0.050 bpc", "+4.2 %", "[+3.2, +5.2]", "+2.7 %", "✓ holds"),
    ]
    near_zero = claim_view(claim("within noise") | {"relative_low": -0.04, "relative_high": 0.42})
    assert near_zero.relative_interval == "[−0.04, +0.42]"
    assert claim_view(claim("holds") | {"relative_low": 0.0}).relative_interval == "[0.0, +5.2]"
    once = claim_view(
        claim("within noise") | dict.fromkeys(("low", "high", "smallest", "relative_low", "relative_high"))
    )
    assert (once.interval, once.smallest, once.relative_interval) == ("", "", "")
    open_below = claim_view(claim("does not hold") | dict.fromkeys(("low", "smallest", "relative_low")))
    assert (open_below.interval, open_below.smallest) == ("[−∞, +0.15]", "")
    assert open_below.relative_interval == "[−∞, +5.2]"


def test_results_of_older_versions_keep_their_rule(tmp_path: Path) -> None:
    results = sample_results(tmp_path) | {"claims": CLAIMS}
    del results["rule"]
    write_report(results, tmp_path)
    assert (tmp_path / "report.md").read_text().replace("\u00a0", " ").count(FORMER_RULE) == 1
    (tmp_path / "results.json").write_text(json.dumps(results | {"rule": "A rule of its own."}))
    assert "A rule of its own." in render_again(tmp_path).with_suffix(".md").read_text()


def test_both_pages_show_lines_rows_and_the_rule_once(pages: tuple[str, str]) -> None:
    html, markdown = pages
    row = "+0.100 bpc | [+0.050, +0.150] | 0.050 bpc | +4.2 % | +2.7 % | ≈ within noise |"
    assert f"| 1 | The claim within noise. | {row}" in markdown
    assert "- **✓ 1 of 3 claims holds:** short holds (−153 %)." in markdown
    assert (markdown.count(RULE), html.count(RULE)) == (1, 1)
    assert html.index('class="picture story"') < html.index('class="verdicts"') < html.index('class="claims stacked"')
    for title, text in (("effect here", "+0.100 bpc"), ("paper, relative", "+2.7 %")):
        assert f'data-title="{title}">{text}</td>' in html


def test_rows_of_tables_with_few_columns_become_blocks_on_a_phone(tmp_path: Path) -> None:
    tables = []
    for width in (MOST_STACKED, MOST_STACKED + 1):
        columns = (label("arm"), *(ours(f"c{i}", f"title {i}", "bpc") for i in range(1, width)))
        row = {column.key: Text("x") if column.of == "label" else Number(1.0, 1) for column in columns}
        tables.append(Table(f"table_{width}", "caption", columns, {"x": row}))
    sections = to_json([Section("one", "One", "paper", "here", tuple(tables))])
    page = write_report(sample_results(tmp_path) | {"sections": sections, "claims": []}, tmp_path).read_text()
    few, many = page.partition(f'id="table-table_{MOST_STACKED + 1}"')[::2]
    assert 'data-title="here: title 1 (bpc)">1.0</td>' in few
    assert '<table class="stacked">' in few.partition('id="table-table_5"')[2]
    assert "data-title" not in many.partition("</figure>")[0]
    assert ' wide" id="table-table_6"' in page
