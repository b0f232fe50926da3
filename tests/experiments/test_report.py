"""The report: its JSON, its pages, and the parts of README and docs that show the committed run."""

from __future__ import annotations

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from experiments.engine.jobs import Job, Outcomes
from experiments.engine.profiles import PROFILES
from experiments.report import readme
from experiments.report.pages import (
    _corpora,
    growth,
    introduction,
    render,
    side_by_side,
    summary,
    table_of,
    write_report,
)
from experiments.report.pictures import draw_effects
from experiments.reproduce import SECTIONS
from experiments.sections import cell_text, unit_words
from tests.data.helpers import files
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
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
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
            columns = sorted(table["columns"], key=lambda column: ("label", "paper", "ours").index(column["of"]))
            for row in table["rows"].values():
                cells = "".join(cell_text(row.get(column["key"])) for column in columns)
                assert "".join(cells.split()) in "".join(page.text.split())
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


def test_the_first_screen_has_links_to_all_parts_and_the_losses_of_the_first_pair(folder: Path) -> None:
    page = Parsed(render(COMMITTED, folder).as_html("title"))
    links = {value[1:] for name, value in page.attributes if name == "href" and value}
    anchors = {value for name, value in page.attributes if name == "id" and value}
    assert links == anchors == {"claims", "differences", "settings", *(f"section-{name}" for name in SECTIONS)}
    first = page.text.partition("Recurrence helps (1)")[0]
    for loss in ("27.02", "26.34 ±\xa01.55", "29.59", "30.35 ±\xa01.39"):
        assert loss in first
    assert "lower is better" in first


def test_every_head_says_the_unit_and_which_way_is_better() -> None:
    """A head without a unit is that of the seeds; the paper's columns come before ours, where they are in sight."""
    for table in (table for section in COMMITTED["sections"] for table in section["tables"]):
        header, _, numbers = table_of(table, "bpe")
        heads = [head for head, is_number in zip(header, numbers, strict=True) if is_number and head != "here: seeds"]
        assert len(heads) <= 10
        assert all(head.endswith(")") for head in heads)
        assert all("↓" in head for head in heads if "loss" in head)
        assert all("↑" in head for head in heads if "RECL" in head or "time of vanilla /" in head)
        assert [head[:5] for head in heads] == sorted((head[:5] for head in heads), reverse=True)
    assert table_of(COMMITTED["sections"][2]["tables"][0], "byte")[0][1] == "paper: test loss ↓ (perplexity)"
    assert (unit_words("bpc", "byte"), unit_words("bpc", "char")) == ("bits a byte", "bits a character")


def test_a_smoke_run_begins_with_what_its_numbers_are_worth_and_judges_nothing(folder: Path) -> None:
    profile = PROFILES["smoke"]
    results = {**COMMITTED, "profile": "smoke", "note": profile.note, "verdicts": profile.verdicts}
    page = render(results, folder)
    assert "numbers below say nothing about the paper" in page.html[1]
    assert not any(sign in page.as_markdown() + page.as_html("title") for sign in "✓✗≈")
    assert "Recurrence helps" not in page.as_markdown()


def test_a_page_of_running_jobs_shows_them_and_loads_itself_again_until_they_are_done(folder: Path) -> None:
    running = {"a-seed1": "step 200 of 1,800, about 3 min left"}
    jobs = {"finished": 3, "planned": 7, "time": "12:00", "seconds_left": 600, "running": running}
    write_report({**COMMITTED, "finished": False, "jobs": jobs | {"waiting": ["b", "c"]}}, folder)
    page = Parsed((folder / "report.html").read_text())
    said = ("Running: 3 of 7 jobs are finished, about 10 min left.", "2 jobs to come", "has run for", "b, c")
    assert [words for words in (*said, *running, *running.values()) if words not in page.text] == []
    assert ("http-equiv", "refresh") in page.attributes
    for ended in ({"finished": False}, {"finished": True}):
        write_report({**COMMITTED, **ended}, folder)
        assert ("http-equiv", "refresh") not in Parsed((folder / "report.html").read_text()).attributes


@pytest.mark.parametrize(("facts", "words"), [({"by_line": False}, ""), ({"by_line": True}, ", line by line")])
def test_the_report_says_how_subwords_are_cut(facts: dict[str, bool], words: str, tmp_path: Path) -> None:
    corpus = {"name": "book", "level": "bpe", "sha256": "ab", **facts}
    files(tmp_path, {"a/metrics.json": json.dumps({"corpus": {**corpus, "tokens": {"test": 5}}})})
    assert (found := _corpora([Job("a", "train", (), "x")], Outcomes(tmp_path, tmp_path))) == [corpus]
    assert f"of book (bpe level{words})" in introduction({**COMMITTED, "corpora": found})


def test_what_cannot_be_written_is_one_error(folder: Path) -> None:
    with pytest.raises(UserError, match="not finite"):
        write_report({**COMMITTED, "seconds": {"wall": float("nan")}}, folder)
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
        results = {**COMMITTED, "profile": name, "title": "one run"}
        files(tmp_path / name, {"results.json": json.dumps(results)})
        columns = side_by_side(results, tmp_path / name)
    assert list(columns) == ["night", "laptop"]
    header, rows, right = readme.beside([{**COMMITTED, "profile": "night"}, COMMITTED])
    assert header[2:6] == ["night: marks", "night: effect", "laptop: marks", "laptop: effect"]
    assert {len(row) for row in rows} == {len(header)} == {len(right)} == {7}
    assert all(row[2:4] == row[4:6] for row in rows)
    figure = draw_effects(tmp_path / "night", columns)
    assert (tmp_path / "night" / figure.png).stat().st_size > 5000
    assert draw_effects(tmp_path, {"nothing": [{"claim": "A", "rows": [{"mark": "–"}]}]}) is None


def test_the_readme_shows_the_committed_runs() -> None:
    text = (readme.ROOT / "README.md").read_text()
    assert readme.with_part(text, readme.part(readme.committed())) == text, "python -m experiments.report.readme"
