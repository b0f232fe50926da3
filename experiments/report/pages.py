"""Write the report, from `results.json` alone: `report.md`, and the same as `report.html`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape as html_text
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from experiments.arms import OFF, ON
from experiments.claims import MARKS, UNITS
from experiments.engine.progress import clock
from experiments.report.pictures import Claims, draw_effects
from experiments.sections import cell_text, decimal, interval, span, unit_words
from txl_lightning.files import write_json, write_text
from txl_lightning.reporting import escape, markdown_table

HEADINGS = {"label": "", "paper": "paper: ", "ours": "here: "}  # in column order
LOSSES = ("ppl", "bpc", "bpb", "bits a byte")  # the last one up to version 0.6.0
RULE = (
    "Effect: the gap between both losses (in nats) in percent of the one that the claim calls higher; "
    "for 8 and 10 the difference of context lengths or attention, for 9 the speed-up less 1. Above "
    "zero: as the claim says. In brackets: the 95 % interval of one effect; a to b: the lowest and "
    "highest of several. Marks, one for each comparison: "
    f"{'; '.join(f'{sign} {words}' for sign, words in MARKS.items())}."
)
Results = Mapping[str, Any]
TextTable = tuple[list[str], list[list[str]], list[bool]]
"""Header, rows, and whether each column is aligned to the right."""


def write_report(results: Results, directory: Path) -> None:
    """Write `results.json`, `report.md` and `report.html`, each atomically.

    Args:
        results: what `results.json` holds.
        directory: the report's folder, with the figures that the sections name.
    """
    page = render(results, directory)
    write_json(directory / "results.json", results, allow_nan=False, ensure_ascii=False)
    write_text(directory / "report.md", page)
    write_text(directory / "report.html", as_html(results, page))


def as_html(results: Results, page: str) -> str:
    """Return a report's Markdown as HTML."""
    style = Path(__file__).with_name("report.css").read_text("utf-8")
    head = [
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html_text(results['title'])}</title>",
        f"<style>{style}</style>",
    ]
    body = MarkdownIt("commonmark").enable("table").render(page)
    lines = ["<!doctype html>", '<html lang="en"><head>', *head, "</head><body>", body]
    return "\n".join([*lines, "</body></html>", ""])


def paragraph(strong: str, text: str) -> str:
    """Return a paragraph that begins with strong words."""
    return f"**{escape(strong)}** {escape(text)}"


def table(content: TextTable) -> str:
    """Return a table."""
    return markdown_table(*content).rstrip("\n")


def figure(png: str, caption: str) -> str:
    """Return a figure and its caption."""
    title = caption.partition(":")[0]
    return f"![{escape(title)}]({png})\n\n{escape(caption)}"


def render(results: Results, directory: Path) -> str:
    """Return the page for `results.json`; its picture for the claims is drawn in `directory`."""
    quoted = f"quoted from Dai et al. 2019 (arXiv:1901.02860): {results['differences']}."
    measured = "Columns headed here were measured in this run."
    note = paragraph(results["note"], f"Columns headed paper are {quoted} {measured}")
    parts = [f"# {escape(results['title'])}", f"> {note}"]
    if not results["finished"]:
        jobs = results["jobs"]
        finished = f"{jobs['finished']} of {jobs['planned']} jobs are finished"
        continues = f"The same command continues: {results['command']}"
        parts.append(f"> {paragraph(f'Unfinished: {finished}.', continues)}")
    parts.append(introduction(results))
    parts.append(escape(UNITS))
    if results.get("verdicts", True):
        parts += _claims(results, directory)
    for section in results["sections"]:
        parts += _section(section)
    parts += _settings(results)
    return "\n\n".join(parts) + "\n"


def introduction(results: Results) -> str:
    """Return command, time, hardware, models, corpus and the first pair's losses, in Markdown."""
    machine = results["machine"]
    where = ", ".join(machine["gpus"])
    if not where:
        where = f"{machine['cores']} cores of an {machine['processor'] or 'unknown CPU'}"
    verb = "took" if results["finished"] else "has run for"
    took = f"{verb} {time_of(results)} on {where}."
    trained = "No training is finished."
    runs = [run for run in results["runs"].values() if run["command"] == "train"]
    if runs:
        models = f"{len(runs)} models of {runs[0]['parameters'] / 1e6:.1f}M parameters"
        tokens = f"{runs[0]['tokens']:,} tokens of {_corpus(results)}"
        trained = f"It trained {models}, each on {tokens} unless the report's tables say otherwise. {pair(results)}"
    return f"`{results['command']}` {escape(f'{took} {trained}')}"


def time_of(results: Results) -> str:
    """Return the whole command's wall-clock time, and in how many calls."""
    seconds = results["seconds"]
    text = clock(seconds["wall"])
    if seconds.get("calls", 1) > 1:
        text += f" in {seconds['calls']} sessions (it was interrupted and resumed)"
    return text


def _corpus(results: Results) -> str:
    corpus = results["corpora"][0]
    level = corpus["level"]
    if level == "bpe":
        level = "BPE subwords"
        # Up to version 0.4.0 each line was encoded alone, and results did not say so.
        if corpus.get("by_line", True):
            level += ", each line encoded alone"
    return f"{corpus['name']} ({level})"


def pair(results: Results) -> str:
    """Return a sentence with test losses with and without recurrence; empty before both are there."""
    tables = [one for section in results["sections"] for one in section.get("tables", ())]
    losses = []
    for content in tables:
        for arm in (ON, OFF):
            row = content["rows"].get(arm.key, {})
            if content["id"] == "table_6" and "init" in row:
                losses.append(_losses(content, row))
    if len(losses) < 2:
        return ""
    both = f"with recurrence: {losses[0]}; without recurrence: {losses[1]}"
    return f"Test results {both}."


def _losses(table_6: Results, row: Results) -> str:
    """Return a row's test losses at training's lengths, with its seeds."""
    texts = []
    for column in table_6["columns"]:
        if column["key"] in ("init", "bpb"):
            texts.append(f"{unit_words(column['unit'])} {cell_text(row[column['key']])}")
    return f"{', '.join(texts)} (seeds {row['seeds']})"


def _claims(results: Results, directory: Path) -> list[str]:
    parts = [
        "## What holds here",
        table(claims_table(results["claims"])),
        escape(RULE),
    ]
    picture = draw_effects(directory, results["claims"], name_of(results))
    if picture is not None:
        parts.append(figure(picture.png, picture.caption))
    parts.append("## The differences")
    for number, claim in enumerate(results["claims"], 1):
        text = f"{claim['paper']}. {claim['difference']}"
        parts.append(paragraph(f"{number}. {claim['claim']}.", text))
        parts.append(table(differences_table(claim)))
        reasons = [row["untested"] for row in claim["rows"] if row.get("untested")]
        parts += [escape(f"–: {reason}") for reason in dict.fromkeys(reasons)]
    return parts


def name_of(results: Results) -> str:
    """Return a reproduction's profile and version, `night 0.4.0`."""
    return f"{results['profile']} {results['versions']['txl_lightning']}"


def claims_table(claims: Claims) -> TextTable:
    """Return the table with a row for each claim."""
    rows = []
    for number, claim in enumerate(claims, 1):
        effects = [row for row in claim["rows"] if row.get("percent") is not None]
        effect = _span_of_percents([row["percent"] for row in effects])
        if len(effects) == 1:
            effect = _in_percent(effects[0])
        paper = _span_of_percents(
            [row["paper"] for row in claim["rows"] if row.get("paper") is not None]
        )
        rows.append(
            [
                str(number),
                claim["claim"],
                _marks(claim["rows"]),
                effect,
                paper,
            ]
        )
    effect = "effect here (+: as claimed)"
    header = ["", "claim of the paper", "marks", effect, "effect in the paper"]
    return header, rows, [True, False, False, True, True]


def _marks(rows: Sequence[Results]) -> str:
    """Return a claim's marks, counted if there are several: `3✓ 1≈`."""
    if len(rows) == 1:
        return str(rows[0]["mark"])
    counts = Counter(row["mark"] for row in rows)
    return " ".join(f"{counts[sign]}{sign}" for sign in MARKS if counts[sign]) or "–"


def differences_table(claim: Results) -> TextTable:
    """Return the table with a row for each difference that a claim has."""
    rows = []
    for row in claim["rows"]:
        percent = ""
        if row.get("percent") is not None and row.get("unit") != "%":
            percent = _in_percent(row)
        paper = ""
        if row.get("paper") is not None:
            paper = _percent(row["paper"])
        rows.append(
            [
                row["title"],
                row["mark"],
                _effect(row),
                percent,
                paper,
            ]
        )
    effect = "effect here (+: as claimed)"
    header = ["difference", "mark", effect, "the same in percent", "paper, in percent"]
    return header, rows, [False, False, True, True, True]


def _effect(row: Results) -> str:
    """Return an effect with its unit and interval."""
    if row.get("effect") is None:
        return ""
    unit = row.get("unit")
    digits = {
        None: 3,
        "bpc": 3,
        "bpb": 3,
        "ppl": 2,
    }.get(unit, 0)
    words = [decimal(row["effect"], digits, signed=True)]
    if unit:
        words.append(unit_words(unit))
    words.append(
        interval(
            row.get("low"),
            row.get("high"),
            digits,
        )
    )
    return " ".join(words).rstrip()


def _percent(value: float) -> str:
    return f"{decimal(value, _percent_digits(value), signed=True)} %"


def _percent_digits(value: float) -> int:
    return 1 if abs(value) < 100 else 0


def _in_percent(row: Results) -> str:
    value = row["percent"]
    ends = interval(
        row.get("percent_low"),
        row.get("percent_high"),
        _percent_digits(value),
    )
    return f"{_percent(value)} {ends}".rstrip()


def _span_of_percents(values: Sequence[float]) -> str:
    """Return the lowest and the highest effect in percent."""
    if not values:
        return ""
    return span([_percent(min(values)), _percent(max(values))])


def _section(section: Results) -> list[str]:
    parts = [
        f"## {escape(section['title'])}",
        paragraph("Paper:", section["paper"]),
        paragraph("Here:", section["here"]),
    ]
    for one in section.get("tables", ()):
        if one["rows"]:
            parts += [f"**{escape(one['caption'])}**", table(table_of(one))]
            parts += [escape(note) for note in one.get("notes", ())]
    for one in section.get("figures", ()):
        parts.append(figure(one["png"], one["caption"]))
    return parts


def table_of(content: Results) -> TextTable:
    """Return a table with results; a heading says title and unit, with an arrow where lower is better."""
    columns = sorted(content["columns"], key=lambda column: list(HEADINGS).index(column["of"]))
    header = []
    for column in columns:
        title = f"{HEADINGS[column['of']]}{column.get('title', '')}"
        unit = column.get("unit")
        if unit in LOSSES and "difference" not in column["key"]:
            title += " ↓"
        if unit:
            title += f" ({unit_words(unit)})"
        header.append(title)
    rows = []
    for row in content["rows"].values():
        rows.append([cell_text(row.get(column["key"])) for column in columns])
    return header, rows, [column["of"] != "label" for column in columns]


def _settings(results: Results) -> list[str]:
    machine = results["machine"]
    training = clock(results["seconds"]["training"])
    versions = [f"{name} {number}" for name, number in results["versions"].items()]
    gpus = ", ".join(machine["gpus"]) or "no GPU"
    facts = dict(results["settings"])
    for corpus in results["corpora"]:
        facts[f"data: {corpus['name']}"] = f"SHA-256 {corpus['sha256']}"
    facts["time"] = f"{time_of(results)}; {training} of training in all jobs"
    facts["machine"] = (
        f"{machine['cores']} cores, {machine['processor']}; {gpus}; "
        f"{machine['platform']}; Python {machine['python']}"
    )
    facts["versions"] = ", ".join(versions)
    facts["command"] = f"{results['command']}; commit {results['commit'] or 'unknown'}"
    rows = [[name, value] for name, value in facts.items()]
    return ["## Settings, versions, data", table((["", ""], rows, [False, False]))]
