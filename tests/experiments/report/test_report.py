"""Pages of the report: they show everything, and nothing breaks out of them."""

import base64
import html
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from experiments.engine.profiles import Setup
from experiments.report import pages
from experiments.report.pages import escape, write_report
from experiments.report.sections import Cell, Sample, Text, decimal, duration, visible
from experiments.report.verdicts import COLUMNS, RULE, claim_text, counts, failures, part_rows
from tests.experiments.report.sample_claim import claim, pending_claim
from txl_lightning.errors import UserError

HOSTILE = "<script>alert('x')</script> | *a* `b` [c](d) & \\"
VOID = {"meta", "img", "br"}
SPACED = re.compile("style|pre|t[dh]|p|d[dt]|h[1-4]|li|figcaption|summary|title")  # a line of their own


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
        if SPACED.fullmatch(tag):
            self.text += "\n"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another tag"

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data


@pytest.fixture(scope="module")
def hostile(results: dict[str, Any], finished: Setup) -> dict[str, Any]:
    """The results of a whole reproduction, with text that tries to become markup wherever text is not ours."""
    first, *others = results["sections"]
    samples = [f"text\n{end}" for end in (f"```\n{HOSTILE}\n", "\x00\x1b[31m é ␣ \ud800" + "=" * 120)]
    texts = tuple(Sample(HOSTILE, "\n    def read(self):\n", "\tb = 1\n", text) for text in samples)
    row = dict.fromkeys((column.key for column in first.tables[0].columns), Text(HOSTILE))
    table = replace(first.tables[0], rows={**first.tables[0].rows, "hostile": row})
    run = {"command": "recl", "arm": HOSTILE, "seed": None, "sections": ["table_8"], "overrides": [HOSTILE]}
    run |= {"key": "ff" * 32, "seconds": 61.3, "directory": "runs/recl"}
    return {
        **results,
        "sections": [replace(first, tables=(table,), samples=texts), *others],
        "command": HOSTILE,
        "corpora": [{**results["corpora"][0], "name": HOSTILE}],
        "runs": {**results["runs"], "hostile": run},
        "claims": [claim("within noise"), claim("holds", -153.0, None), claim("within noise", 1.0), pending_claim()],
        "machine": {**results["machine"], "processor": "AMD EPYC 7763", "cores": 2, "platform": "Linux-6.1"},
        "seconds": {"wall": 1523.4, "training": 2411.7, "rest": 305.2},
    }


@pytest.fixture(scope="module")
def directory(hostile: dict[str, Any], finished: Setup) -> Path:
    assert write_report(hostile, finished.directory) == finished.directory / "report.html"
    return finished.directory


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


def words(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield every text that both pages must show, numbers as decimals."""
    yield from (results["note"], results["command"], results["code"], results["rules"])
    yield from (text for corpus in results["corpora"] for text in (corpus["name"], corpus["sha256"]))
    yield from (text for pair in results["settings"] for text in pair)
    yield from (text for pair in results["versions"].items() for text in pair)
    for name, run in results["runs"].items():
        yield from (name, run["arm"], " ".join(run["overrides"]), run["key"], run["directory"])
    for stated in results["claims"]:
        yield from (stated[key] for key in ("claim", "paper", "rule", "sentence"))
        yield from (part["title"] for part in stated["parts"])
    for section in results["sections"]:
        yield from (section.title, section.paper, section.here)
        yield from (figure.caption for figure in section.figures)
        yield from (sample.title for sample in section.samples)
        for table in section.tables:
            yield from (table.caption, *table.notes)
            yield from (text for column in table.columns for text in (column.title, column.unit) if text)
            yield from (text for row in table.rows.values() for cell in row.values() for text in cell_words(cell))


def cell_words(cell: Cell) -> Iterator[str]:
    if isinstance(cell, Text):
        yield cell.text
    elif cell and cell.low is cell.high is None:
        values = list((cell.by_seed or {}).values()) if cell.standard_error is None else []
        ends = dict.fromkeys(f"{end(values):,.{cell.digits}f}" for end in (min, max) if values)
        mean = " to ".join(ends) or f"{cell.value:,.{cell.digits}f}".replace("-", "−")
        if cell.standard_error is not None:
            mean += f" ± {cell.standard_error:,.{cell.digits}f}"
        yield ("≥ " if cell.at_least else "") + mean
        yield from (f"seed {seed}: {value:,.{cell.digits}f}" for seed, value in (cell.by_seed or {}).items())


def test_both_pages_show_everything(hostile: dict[str, Any], page: Page, markdown: str) -> None:
    read, shown = plain(line(markdown)), line(page.text)
    for text in words(hostile):
        assert line(text) in read, f"report.md lacks {text}"
        assert line(text) in shown, f"report.html lacks {text}"
    for sample in hostile["sections"][0].samples:
        for text in (sample.context, sample.truth, sample.text):
            assert visible(text) in markdown
            assert visible(text) in page.text


def test_both_pages_show_hardware_times_and_the_size_of_runs(
    page: Page, markdown: str, hostile: dict[str, Any]
) -> None:
    facts = {"CPU": "AMD EPYC 7763, 2 cores", "GPUs": "none", "platform": "Linux-6.1"}
    facts |= {"Python": platform.python_version(), "started": "2026-11-24T03:00:00+00:00", "wall-clock time": "25 min"}
    facts["time of all trainings"] = "40 min (sum; some ran in parallel)"
    facts["time of everything else"] = "5 min (sum; some ran in parallel)"
    name = "recurrence-shaw-full_loss-seed2"
    run = hostile["runs"][name]
    cells = [name, "train", "recurrence, Shaw, full loss", "2"]
    cells += [f"{run[key]:,}" for key in ("parameters", "steps", "tokens")] + [
        duration(run["seconds"]),
        "Table 6, Table 8",
    ]
    for row in (*facts.items(), cells):
        assert f"| {' | '.join(row)} |" in plain(markdown)
        assert " ".join(row) in line(page.text)


def test_cells_with_intervals_bounds_and_other_seeds(hostile: dict[str, Any], markdown: str) -> None:
    """The sample has 40, 39 and 38 tokens for QRNN, at least, from 9 less to 8 more; beyond the grid at r = 0.5."""
    assert "| group 1: QRNN | ≥ 40 [31, 48] | ≥ 39 [30, +∞] | ≥ 38 [29, 46] |" in markdown
    assert "mean ± standard error over seeds 1, 2, 3 (n = 3)" in markdown
    tables = {table.id: table for section in hostile["sections"] for table in section.tables}
    alone = tables["table_6"].number("no_recurrence-relative-full_loss", "memory")
    assert f"| {alone.value:.3f} (n = 1) |" in markdown
    assert "| here: test, init (bpc) | here: test, best (bpc) | here: attention length (tokens) |" in markdown
    seeds = (tables["table_6"].number("recurrence-shaw-full_loss", "init").by_seed or {}).items()
    assert f"| {'; '.join(f'seed {seed}: {value:.3f}' for seed, value in seeds)} | seed 1: " in markdown


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


def test_figures_are_inside_with_their_words(
    page: Page, markdown: str, directory: Path, hostile: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    images = [attributes for tag, attributes in page.tags if tag == "img"]
    figures = [figure for section in hostile["sections"] for figure in section.figures]
    assert [image["alt"] for image in images[2:]] == [figure.alt for figure in figures]
    assert len(figures) == 15
    assert all((image["src"] or "").startswith("data:image/svg+xml;b") for image in images[:2])  # arms and claims
    curves = figures[0]
    source = base64.b64encode((directory / curves.png).read_bytes()).decode()
    assert (images[2]["src"], images[2]["width"]) == (f"data:image/png;base64,{source}", "518")
    assert all(f"![{figure.alt}]({figure.png})" in markdown for figure in figures)
    monkeypatch.setattr(pages, "LARGEST_SVG", 1000)  # a large drawing goes in as pixels
    assert "data:image/svg" not in pages.render(hostile, directory)["report.html"]


def test_columns_of_markdown_tables_are_as_many_in_every_row(markdown: str) -> None:
    without_samples = re.sub(r"^(`{3,})text\n.*?^\1$", "", markdown, flags=re.DOTALL | re.MULTILINE)
    tables = re.findall(r"(?:^\|.*\|\n)+", without_samples, re.MULTILINE)
    assert len(tables) > 15
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1, table
    assert "<script>" not in without_samples


def test_what_cannot_be_written_is_one_line(results: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"figures/.*\.png cannot be read"):
        write_report(results, tmp_path)
    with pytest.raises(UserError, match=r"results.json: a number of the report is not finite"):
        write_report({**results, "seconds": {"wall": float("nan")}}, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        write_report({**results, "sections": (), "claims": []}, tmp_path / "file")


def test_counts_and_a_sentence_for_each_claim_that_does_not_hold() -> None:
    assert counts([claim("holds"), claim("holds")]) == "2 of 2 claims hold; 2 of 2 parts hold"
    marks = ("within noise", "holds", "does not hold", "not tested", "does not hold")
    found = [*(claim(mark) for mark in marks), pending_claim()]
    others = "2 do not hold, 1 is within noise, 1 is not tested, 1 is pending"
    assert counts(found) == f"1 of 6 claims hold so far, {others}; 1 of 6 parts hold"
    assert [(one["mark"], mark, sentence) for one, mark, sentence in failures(found)] == [
        ("does not hold", "does not hold", "Why it does not hold."),
        ("does not hold", "does not hold", "Why it does not hold."),
        ("within noise", "within noise", "Why it within noise."),
        ("not tested", "not tested", "The claim not tested."),
    ]


def test_a_row_has_effect_interval_margin_and_the_papers_effect() -> None:
    view = claim_text(claim("holds"))
    assert " | ".join(view.values()).replace("\u00a0", " ") == (
        "+0.100 bpc | [+0.050, +0.150] | +4.2 % | [+3.2, +5.2] | +2.7 % | by 0.05 bpc | 84 % | ✓ holds"
        " | The claim holds. | 1 of 1"
    )
    assert claim_text(claim("holds") | {"state": "so far"})["mark"] == "✓ holds, so far"
    ends = {"relative_low": -0.04, "relative_high": 0.42}  # on which side of zero an end lies is visible
    assert claim_text(claim("within noise", **ends))["relative_interval"] == "[−0.04, +0.42]"
    once = claim("within noise", **dict.fromkeys(("low", "high", "relative_low", "relative_high")))
    assert [claim_text(once)[key] for key in ("effect", "interval", "relative_interval")] == ["+0.10 bpc", "", ""]
    below = claim_text(claim("does not hold", **dict.fromkeys(("low", "relative_low"))))
    assert (below["interval"], below["relative_interval"]) == ("[−∞, +0.15]", "[−∞, +5.2]")
    margins = (0.00042, 0.0, 0.123, 12.3)
    assert [claim_text(claim("holds", margin=m, unit=None))["by"] for m in margins] == [
        "by 0.0004", "by 0", "by 0.12", "by 12",
    ]  # fmt: skip
    empty = claim_text(pending_claim() | {"n_parts": 0})
    assert {key: text for key, text in empty.items() if text} == {
        "theirs": "+2.7\u00a0%",
        "mark": "… pending",
        "claim": "The claim None.",
    }
    (part,) = part_rows([pending_claim()])
    assert (part["number"], part["name"], part["mark"]) == ("1", "pending", "… pending, 2 runs to come")


def test_both_pages_show_claims_parts_and_the_rule_once(page: Page, markdown: str) -> None:
    columns = ("mark", "effect", "interval", "by", "relative", "theirs", "power", "parts")
    row = claim_text(claim("within noise"))
    cells = [row[key].replace("\u00a0", " ") for key in ("claim", *columns)]
    source, shown = (text.replace("\u00a0", " ") for text in (line(page.text), markdown))
    assert f"| 1 | {' | '.join(cells)} |" in shown
    assert f"1. {' '.join(cells)}" in source
    assert "1 of 4 claims hold so far, 2 are within noise, 1 is pending; 1 of 4 parts hold" in shown
    assert "- **≈ short within noise**: within noise. Why it within noise." in shown
    assert "| 1 | one − other, within noise | ≈ within noise | +0.100 bpc |" in shown
    assert [text.count(words) for text in (shown, source) for words in (RULE, COLUMNS)] == [1, 1, 1, 1]


def test_the_introduction_names_corpus_size_training_and_hardware(results: dict[str, Any], page: Page) -> None:
    trainings = [run for run in results["runs"].values() if run["command"] == "train"]
    first = pages.introduction(results)
    assert first.startswith(f"{len(trainings)} models were trained on sample (byte level), the first with ")
    assert f"{trainings[0]['parameters']:,} parameters" in first
    assert f"{results['machine']['cores']} cores" in first
    assert pages.introduction({**results, "runs": {}}).startswith("No training is finished yet")


def test_a_picture_is_drawn_again_only_if_it_changes(results: dict[str, Any], finished: Setup) -> None:
    picture = finished.directory / "figures" / "claims.png"
    for claims, again in (([claim("holds")], True), ([claim("holds")], False), ([claim("holds", 3.0)], True)):
        before = picture.stat().st_mtime_ns if picture.exists() else 0
        pages.render({**results, "claims": claims}, finished.directory)
        assert (picture.stat().st_mtime_ns != before) == again
    picture.unlink()
    pages.render({**results, "claims": [claim("holds", 3.0)]}, finished.directory)


def test_the_commit_is_that_of_the_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def git(*words: str) -> str:
        options = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        return subprocess.run(
            ["git", *options, *words], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout

    monkeypatch.setattr(pages, "ROOT", tmp_path)
    found = pages._commit.__wrapped__  # without its cache
    assert found() is None
    git("init", "-q")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-qm", "first")
    assert found() == git("rev-parse", "HEAD").strip()
    (tmp_path / "file").write_text("two")
    assert found() == git("rev-parse", "HEAD").strip() + "-dirty"


def test_numbers_and_times() -> None:
    assert [decimal(v, 1) for v in (1234.56, -0.04, -2.0)] == ["1,234.6", "0.0", "−2.0"]
    assert [decimal(v, 2, signed=True) for v in (0.001, 0.12, -0.12)] == ["0.00", "+0.12", "−0.12"]
    assert [duration(s) for s in (7.25, 75.1, 130, 5000)] == ["7.2 s", "75 s", "2 min", "1 h 23 min"]


def test_markdown_is_escaped_where_it_must_be() -> None:
    escaped = {"a|b": r"a\|b", "- x": r"\- x", "1. x": r"1\. x", "# x": r"\# x"}
    same = ("-1", "1.5", "[1, 2]")
    assert {text: escape(text) for text in (*escaped, *same)} == escaped | {text: text for text in same}
