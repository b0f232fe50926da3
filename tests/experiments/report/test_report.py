"""Pages of the report: they show everything, nothing breaks out of them, and broken results are refused."""

import html
import json
import re
import runpy
from collections.abc import Callable, Iterator
from copy import deepcopy
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from experiments.report import __main__ as report_main
from experiments.report import rendering as report
from experiments.report.cells import Number, Text
from experiments.report.check import check_results
from experiments.report.markdown import escape
from experiments.report.sections import Section, Table, label, ours, section_from_json, to_json
from experiments.report.view import duration, number, visible
from tests.experiments.report.sample_results import sample_results
from txl_lightning.errors import UserError

VOID = {"meta", "img", "br"}
KEPT_AS_TEXT = {
    "style",
    "pre",
    "td",
    "th",
    "p",
    "dd",
    "dt",
    "h1",
    "h2",
    "h3",
    "h4",
    "li",
    "figcaption",
    "summary",
    "title",
}


class Page(HTMLParser):
    """Text, tags and ids of `report.html`; parsing it asserts that tags close in order."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag in KEPT_AS_TEXT:
            self.text += "\n"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another tag"

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("report")
    assert report.write_report(sample_results(directory), directory) == directory / "report.html"
    return directory


@pytest.fixture(scope="module")
def results(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "results.json").read_text())


@pytest.fixture(scope="module")
def page(directory: Path) -> Page:
    return Page((directory / "report.html").read_text("utf-8"))


@pytest.fixture(scope="module")
def markdown(directory: Path) -> str:
    return (directory / "report.md").read_text("utf-8")


def plain(markdown: str) -> str:
    """Return Markdown without escapes, as a reader sees it."""
    return html.unescape(re.sub(r"\\([^\w\s])", r"\1", markdown))


def line(text: str) -> str:
    return " ".join(text.split())


def words(results: dict[str, Any]) -> Iterator[str]:
    """Yield every text that both pages must show, numbers as decimals."""
    yield results["note"]
    yield results["command"]
    yield results["code"]
    yield from (text for corpus in results["corpora"] for text in (corpus["name"], corpus["sha256"]))
    yield from (text for pair in results["settings"] for text in pair)
    yield from (text for pair in results["versions"].items() for text in pair)
    for name, run in results["runs"].items():
        yield from (name, run["arm"], " ".join(run["overrides"]), run["key"], run["directory"])
    for claim in results["claims"]:
        yield from (claim[key] for key in ("claim", "paper", "rule", "mark", "evidence"))
    for section in results["sections"]:
        yield from (section[key] for key in ("title", "paper", "here"))
        yield from (figure["caption"] for figure in section.get("figures", []))
        yield from (sample["title"] for sample in section.get("samples", []))
        for table in section["tables"]:
            yield from (table["caption"], *table["notes"])
            yield from (text for column in table["columns"] for text in (column["title"], column["unit"]) if text)
            yield from (text for row in table["rows"] for cell in row.values() if cell for text in cell_words(cell))


def cell_words(cell: dict[str, Any]) -> Iterator[str]:
    if "text" in cell:
        yield cell["text"]
        return
    mean = f"{cell['value']:.{cell['digits']}f}"
    if "standard_error" in cell:
        mean += f" ± {cell['standard_error']:.{cell['digits']}f}"
    if "low" in cell:
        mean += f" [{cell['low']}, {cell['high']}]"
    yield ("≥ " if cell.get("at_least") else "") + mean
    yield from (f"seed {seed}: {value:.{cell['digits']}f}" for seed, value in cell.get("by_seed", {}).items())
    if cell.get("difference", 0) >= 0.0005:
        yield f"+{cell['difference']:.{cell['digits']}f}"


def test_both_pages_show_everything(results: dict[str, Any], page: Page, markdown: str) -> None:
    read, shown = plain(line(markdown)), line(page.text)
    for text in words(results):
        assert line(text) in read, f"report.md lacks {text}"
        assert line(text) in shown, f"report.html lacks {text}"


def test_both_pages_show_hardware_times_and_the_size_of_runs(page: Page, markdown: str) -> None:
    shown = line(page.text)
    facts = {
        "CPU": "AMD EPYC 7763, 2 cores",
        "GPUs": "none",
        "platform": "Linux-6.1-x86_64",
        "Python": "3.11.7",
        "started": "2026-11-20T16:00:00+00:00",
        "wall-clock time": "25 min",
        "time of all trainings": "40 min (sum; some ran in parallel)",
        "time of everything else": "5 min (sum; some ran in parallel)",
    }
    for name, text in facts.items():
        assert f"| {name} | {text} |" in markdown
        assert f"{name} {text}" in shown
    run = ["recurrence-shaw-full-2", "train", "recurrence, shaw, full loss", "2", "387,040", "1,500", "768,000", "76 s"]
    assert f"| {' | '.join(run)} | Table 6, Table 8 |" in markdown
    assert f"{' '.join(run)} Table 6, Table 8" in shown


def test_a_cell_with_other_seeds_has_its_own_count(markdown: str) -> None:
    assert "mean ± standard error over seeds 1, 2, 3 (n = 3)" in markdown
    assert "| 2.745 (n = 1) |" in markdown  # 2.581 + 8 · 0.021 - 0.004
    assert "| here: init (bpc) | here: best (bpc) |" in markdown
    assert "| seed 1: 2.581; seed 2: 2.589; seed 3: 2.590 | seed 1: 2.545; seed 2: 2.553; seed 3: 2.554 |" in markdown


def test_both_pages_show_every_sample_as_it_is(results: dict[str, Any], page: Page, markdown: str) -> None:
    samples = [sample for section in results["sections"] for sample in section.get("samples", [])]
    assert len(samples) == 3
    for sample in samples:
        for text in (sample["context"], sample["truth"], sample["text"]):
            assert visible(text) in markdown
            assert visible(text) in page.text


def test_the_page_needs_nothing_else(directory: Path, page: Page) -> None:
    assert not {"script", "link", "iframe", "object", "embed", "base"} & {tag for tag, _ in page.tags}
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")]
        assert (attributes.get("src") or "data:").startswith("data:")
        target = attributes.get("href") or "#"
        assert target == "#" or target[1:] in ids, f"<{tag} href={target}>"
    style = (directory / "report.html").read_text("utf-8").partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style


def test_figures_are_inside_with_their_words(results: dict[str, Any], page: Page, markdown: str) -> None:
    images = [attributes for tag, attributes in page.tags if tag == "img"]
    figures = [figure for section in results["sections"] for figure in section.get("figures", [])]
    assert [image["alt"] for image in images] == [figure["alt"] for figure in figures]
    assert [(image["src"] or "")[:20] for image in images] == ["data:image/svg+xml;b", "data:image/png;base6"]
    assert images[0]["width"] == "672"
    for figure in figures:
        assert f"![{figure['alt']}]({figure['png']})" in markdown


def test_a_large_drawing_goes_in_as_pixels(
    results: dict[str, Any], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "LARGEST_SVG", 1000)
    assert "data:image/svg" not in report.render(results, directory)["report.html"]


def test_paper_and_ours_stand_apart(page: Page, markdown: str) -> None:
    groups = [a for tag, a in page.tags if tag == "th" and a.get("scope") == "colgroup"]
    assert [(a["class"], a["colspan"]) for a in groups[:3]] == [
        ("label first", "2"),
        ("ours first", "4"),
        ("paper first", "3"),
    ]
    assert "| here: init (bpc) | here: init: difference (bpc) |" in markdown
    assert "| paper: init (ppl) |" in markdown


def test_columns_of_markdown_tables_are_as_many_in_every_row(markdown: str) -> None:
    without_samples = re.sub(r"^(`{3,})text\n.*?^\1$", "", markdown, flags=re.DOTALL | re.MULTILINE)
    tables = re.findall(r"(?:^\|.*\|\n)+", without_samples, re.MULTILINE)
    assert len(tables) == 9
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1, table
    assert "<script>" not in without_samples


def test_rendering_again_gives_the_same_bytes(
    directory: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name: path.read_bytes() for path in directory.glob("re*")}
    assert set(before) == {"report.html", "report.md", "results.json"}
    (directory / "report.md").unlink()
    monkeypatch.setattr("sys.argv", ["report", str(directory)])
    with pytest.raises(SystemExit, match=r"^0$"):
        runpy.run_path(report_main.__file__, run_name="__main__")  # as `python -m experiments.report` does
    assert capsys.readouterr().out == f"report: {directory / 'report.html'}\n"
    assert {path.name: path.read_bytes() for path in directory.glob("re*")} == before


def at(results: dict[str, Any], *path: str | int) -> Any:
    for key in path:
        results = results[key]  # type: ignore[index]
    return results


def without(*path: str | int) -> Callable[[dict[str, Any]], None]:
    return lambda results: at(results, *path[:-1]).pop(path[-1])


def with_(value: object, *path: str | int) -> Callable[[dict[str, Any]], None]:
    return lambda results: at(results, *path[:-1]).__setitem__(path[-1], value)


TABLE = ("sections", 0, "tables", 0)
INIT = (*TABLE, "rows", 2, "init")
BROKEN = {
    "the whole: 'note'": without("note"),
    "the whole: Additional properties": with_(1, "extra"),
    "schema_version: 1": with_(2, "schema_version"),
    "profile: 'huge'": with_("huge", "profile"),
    "started: 'now'": with_("now", "started"),
    "corpora[0].sha256: 'bc88'": with_("bc88", "corpora", 0, "sha256"),
    "settings[1]: ['segment']": with_(["segment"], "settings", 1),
    "runs.recl: False": with_(3, "runs", "recl", "steps"),
    "runs['recurrence-relative-full-1']: 'tokens' is a required": without(
        "runs", "recurrence-relative-full-1", "tokens"
    ),
    "sections[0].tables[0].rows[2].init.value: '2.6'": with_("2.6", *INIT, "value"),
    "sections[0].tables[0].rows[2].init.value: nan": with_(float("nan"), *INIT, "value"),
    "sections[0].tables[0].rows[2].init: 'digits'": without(*INIT, "digits"),
    "sections[0].tables[0].rows[2].init: 2.6 is not of type": with_(2.6, *INIT),
    "sections[0].tables[0].rows[2].init: Additional": with_("bpc", *INIT, "unit"),
    "sections[0].tables[0].rows[2]: 'init' is a column": without(*INIT),
    "sections[0].tables[0].rows[2]: 'more' is a column": with_(None, *TABLE, "rows", 2, "more"),
    "sections[0].tables[0].columns[3].of: 'theirs'": with_("theirs", *TABLE, "columns", 3, "of"),
    "sections[0].tables[0].columns: 'loss' is there twice": with_("loss", *TABLE, "columns", 0, "key"),
    "paper_init.difference: only": with_(0.1, *TABLE, "rows", 0, "paper_init", "difference"),
    "sections: 'table_6' is there twice": with_("table_6", "sections", 1, "id"),
    "row_keys: 'a' is there twice": with_(["a"] * 9, *TABLE, "row_keys"),
    "row_keys: must be 9 keys": with_(["a"], *TABLE, "row_keys"),
    "figures[0].png: '../up.png'": with_("../up.png", "sections", 0, "figures", 0, "png"),
    "claims[0].mark: 'true'": with_("true", "claims", 0, "mark"),
    "claims[0].tables: there is no table 'table_7'": with_(["table_7"], "claims", 0, "tables"),
    "Object of type": with_(Path(), "note"),
}


@pytest.mark.parametrize("message", BROKEN)
def test_broken_results_are_refused_by_path(results: dict[str, Any], message: str, tmp_path: Path) -> None:
    broken = deepcopy(results)
    BROKEN[message](broken)
    with pytest.raises(UserError) as caught:
        report.write_report(broken, tmp_path)
    assert str(caught.value).startswith("results.json: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_an_interval_takes_the_place_of_a_standard_error(results: dict[str, Any]) -> None:
    broken = deepcopy(results)
    at(broken, *INIT).update(low=2.5, high=2.7)
    with pytest.raises(UserError, match=r"rows\[2\].init.*0\.00"):
        check_results(broken)


def test_sections_read_back_are_those_written(results: dict[str, Any]) -> None:
    sections = [section_from_json(section) for section in results["sections"]]
    plain_sections = to_json(sections)
    assert [section_from_json(section) for section in json.loads(json.dumps(plain_sections))] == sections
    for written, section in zip(plain_sections, results["sections"], strict=True):
        assert [table["rows"] for table in written["tables"]] == [table["rows"] for table in section["tables"]]
        assert written.get("figures", []) == section.get("figures", [])


def test_a_minimal_table_is_shown(results: dict[str, Any], tmp_path: Path) -> None:
    table = Table(
        "table_x",
        "Table X",
        (label("arm"), ours("loss", "test loss", "bpc")),
        {"a": {"arm": Text("A"), "loss": Number(1.5, 2)}},
    )
    section = Section("table_x", "Table X: a new one", "Better.", "One run.", tables=(table,))
    report.write_report({**results, "sections": [to_json(section)], "claims": []}, tmp_path)
    assert "| A | 1.50 |" in (tmp_path / "report.md").read_text()


def test_a_missing_figure_or_file_is_one_line(
    results: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(UserError, match=r"table_6\.png cannot be read"):
        report.write_report(results, tmp_path)
    assert report_main.main([str(tmp_path)]) == 2
    (tmp_path / "results.json").write_text("{")
    assert report_main.main([str(tmp_path)]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "cannot be read" in first
    assert "is not JSON" in second


def test_numbers_and_times() -> None:
    assert [number(v, 1) for v in (1234.56, -0.04, -2.0)] == ["1,234.6", "0.0", "−2.0"]
    assert [number(v, 2, signed=True) for v in (0.001, 0.12, -0.12)] == ["0.00", "+0.12", "−0.12"]
    assert [duration(s) for s in (7.25, 75.1, 130, 5000)] == ["7.2 s", "75 s", "2 min", "1 h 23 min"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a|b", r"a\|b"),
        ("-1", "-1"),
        ("- x", r"\- x"),
        ("1. x", r"1\. x"),
        ("1.5", "1.5"),
        ("# x", r"\# x"),
        ("[1, 2]", "[1, 2]"),
    ],
)
def test_markdown_is_escaped_where_it_must_be(text: str, shown: str) -> None:
    assert escape(text) == shown
