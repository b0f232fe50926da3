"""The report: its JSON, its pages, and the parts of README and docs that show the committed run."""

from __future__ import annotations

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from experiments.report import readme
from experiments.report.pages import growth, render, side_by_side, summary, write_report
from experiments.report.pictures import draw_effects
from experiments.sections import cell_text
from txl_lightning.errors import UserError

HOSTILE = "<script>alert('x')</script> | *a* `b` [c](d) & \\"
LAPTOP = readme.ROOT / readme.RESULTS / "laptop"
COMMITTED = json.loads((LAPTOP / "results.json").read_text())


class Parsed(HTMLParser):
    """Text of `report.html`; parsing it asserts that tags close in order."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open += [] if tag in ("meta", "img") else [tag]
        self.text += "\n" if tag in ("tr", "p") else " "

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the figures of the committed run."""
    shutil.copytree(LAPTOP / "figures", tmp_path / "report/figures")
    return tmp_path / "report"


def test_both_pages_show_every_claim_table_and_figure(folder: Path) -> None:
    write_report(COMMITTED, folder)
    assert json.loads((folder / "results.json").read_text()) == COMMITTED
    markdown = (folder / "report.md").read_text()
    assert markdown == (LAPTOP / "report.md").read_text(), "python -m experiments.report.readme"
    page = Parsed((folder / "report.html").read_text())
    figures = [figure for section in COMMITTED["sections"] for figure in section.get("figures", ())]
    assert page.tags.count("img") == markdown.count("![") == len(figures) + 1
    for section in COMMITTED["sections"]:
        assert section["title"] in page.text
        for table in section["tables"]:
            assert table["caption"] in page.text
            for row in table["rows"].values():
                cells = [cell_text(row.get(column["key"])) for column in table["columns"]]
                assert "".join(cells).replace(" ", "") in page.text.replace(" ", "")
    for claim in COMMITTED["claims"]:
        for row in claim["rows"]:
            assert f"| {row['title']} | {row['mark']} | " in markdown
            assert row["title"] in page.text


def test_no_text_becomes_markup_and_an_unfinished_report_says_how_to_continue(folder: Path) -> None:
    first, *others = COMMITTED["sections"]
    hostile = {"note": HOSTILE, "sections": [{**first, "here": HOSTILE}, *others]}
    page = render({**COMMITTED, "finished": False, **hostile}, folder)
    html = Parsed(page.as_html("title"))
    assert "script" not in html.tags
    assert html.text.count(HOSTILE) == 2
    assert r"\| \*a\* \`b\` [c\](d) &amp; \\" in page.as_markdown()
    assert "To continue: make reproduce" in html.text


def test_what_cannot_be_written_is_one_error(folder: Path) -> None:
    with pytest.raises(UserError, match="not finite"):
        write_report({**COMMITTED, "seconds": {"wall": float("nan"), "training": 1.0}}, folder)
    (folder / "figures/speed_speed.png").unlink()
    with pytest.raises(UserError, match=r"cannot be written: .*speed_speed\.png"):
        write_report(COMMITTED, folder)


def test_sentences_name_what_holds_and_what_changes_with_training() -> None:
    grows = {"tokens": [1, 2, 4], "course": {"1": [0.0, 1.0, 2.0], "2": [0.0, 1.0, 4.0]}}
    falls = {"tokens": [1, 2, 4], "course": {"1": [0.0, 2.0, 1.5]}}
    flat = {"tokens": [1, 2, 4], "course": {"1": [0.0, 1.0, 4.0], "2": [0.0, 1.0, 1.4]}}
    marks = {"A": "✓", "B": "✓✗", "C": "✗≈", "D": "≈", "E": "–", "F": "", "G": "✓≈"}
    claims = [{"claim": claim, "rows": [{"mark": mark} for mark in signs]} for claim, signs in marks.items()]
    claims[0]["rows"][0] |= grows  # type: ignore[index, operator]
    claims[6]["rows"][0] |= flat  # type: ignore[index, operator]
    claims[3]["rows"] = [{"mark": "≈", **grows}, {"mark": "≈", **falls}]  # one of them is A's
    assert growth(grows) == [1.0, 3.0]
    late = "by 0.5 percentage points or more from the middle to the end of training, in every comparison and seed"
    assert summary(claims) == [
        "Holds in every comparison (✓ alone): A (1).",
        "Holds in some comparisons, undecided in the others (✓ and ≈): G (7).",
        "Mixed (✓ and ✗): B (2).",
        "Holds in none, the opposite in some (✗, no ✓): C (3).",
        "Undecided (≈ alone): D (4).",
        "Cannot be told in this run (–): E (5); F (6).",
        f"The effect grows {late}: A (1).",
        f"The effect shrinks {late}: D (4).",
    ]


def test_laptop_and_night_stand_side_by_side(tmp_path: Path) -> None:
    for name in ("laptop", "night"):
        (tmp_path / name).mkdir()
        results = {**COMMITTED, "profile": name, "title": "one run"}
        (tmp_path / name / "results.json").write_text(json.dumps(results))
        columns = side_by_side(results, tmp_path / name)
    assert list(columns) == ["night", "laptop"]
    header, rows, right = readme.beside([{**COMMITTED, "profile": "night"}, COMMITTED])
    assert header[2:6] == ["night: marks", "night: effect", "laptop: marks", "laptop: effect"]
    assert {len(row) for row in rows} == {len(header)} == {len(right)} == {7}
    assert all(row[2:4] == row[4:6] for row in rows)
    figure = draw_effects(tmp_path / "night", columns)
    assert figure is not None
    assert (tmp_path / "night" / figure.png).stat().st_size > 5000
    assert draw_effects(tmp_path, {"nothing": [{"claim": "A", "rows": [{"mark": "–"}]}]}) is None


@pytest.mark.parametrize("page", ["README.md", "docs/reproduction.md"])
def test_a_page_shows_the_committed_runs(page: str) -> None:
    text = (readme.ROOT / page).read_text()
    assert readme.with_part(text, readme.parts(readme.committed())[page]) == text, "python -m experiments.report.readme"
