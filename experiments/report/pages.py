"""Files of the report: `results.json`, and from it alone `report.md` for GitHub and `report.html` with its figures."""

from __future__ import annotations

import base64
import json
import platform
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from html import escape as html_text
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.arms import OFF, ON
from experiments.claims import FINDINGS, MARKS, UNITS, judged
from experiments.engine.jobs import Job, Outcomes, composed
from experiments.engine.plan import Plan
from experiments.engine.progress import Progress, clock
from experiments.report.pictures import courses, draw_effects
from experiments.sections import HEADINGS, Section, cell_text, decimal, interval, to_json, unit_words
from txl_lightning.errors import UserError, cores
from txl_lightning.files import write_text
from txl_lightning.job_folder import JobFolder, checksum
from txl_lightning.reporting import escape, markdown_table, processor

LIBRARIES = ("txl_lightning", "torch", "lightning", "hydra-core", "numpy")
ROOT = Path(__file__).parents[2]
SCALES = ("laptop", "night")
SETTINGS, LOSSES = "Settings, versions, data", ("ppl", "bpc", "bits a byte")
RULE = (
    "Effect: by how many percent the loss (in nats) that the claim calls higher exceeds the other; for 8 and 10 the "
    "difference of context lengths or attention, for 9 the speed-up less 1. Above zero: as the claim says. In "
    "brackets: the 95 % interval of one effect; a to b: the lowest and highest of several. "
    f"Marks, one for each comparison: {'; '.join(f'{sign} {words}' for sign, words in MARKS.items())}."
)
GROWTH = 0.5  # percentage points; less is not called growth


def assemble(
    plan: Plan, outcomes: Outcomes, sections: Sequence[Section], wall_seconds: float, progress: Progress | None = None
) -> dict[str, Any]:
    """Return the content of `results.json`.

    Args:
        plan: jobs of the reproduction.
        outcomes: results of those that are finished.
        sections: sections of the report, in order.
        wall_seconds: time so far, of this call and of those before it.
        progress: of the jobs that run; None once they have ended.
    """
    profile = plan.setup.profile
    done = [job for job in plan.jobs if outcomes.has(job)]
    seconds = {job.name: plan.record(job).get("seconds", 0.0) for job in done}
    training = sum(seconds[job.name] for job in done if job.command == "train")
    shown = [{"paper": FINDINGS[section.id], **to_json(replace(section, differences=()))} for section in sections]
    return {
        "schema_version": 3,
        "finished": len(done) == len(plan.jobs),
        "jobs": {"finished": len(done), "planned": len(plan.jobs), **(progress.as_json() if progress else {})},
        "profile": profile.name,
        "title": profile.title,
        "differences": profile.differences,
        "note": profile.note,
        "verdicts": profile.verdicts,
        "command": plan.setup.command,
        "seconds": {"wall": round(wall_seconds, 1), "training": round(training, 1)},
        "machine": {
            "processor": processor(),
            "cores": cores(),
            "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
            "python": platform.python_version(),
            "platform": platform.platform(),
        },
        "versions": {name: version(name) for name in LIBRARIES},
        "commit": _commit(),
        "corpora": _corpora(done, outcomes),
        "settings": _settings(plan, done, outcomes),
        "claims": judged(sections),
        "sections": shown,
        "runs": {job.name: _run(job, plan, outcomes, seconds[job.name]) for job in done},
    }


@cache
def _commit() -> str | None:
    """Commit of the checkout, with `-dirty` if its files differ; None outside of one, or without git."""
    words = (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
    try:
        found = [subprocess.run(["git", *part], cwd=ROOT, capture_output=True, text=True, check=True) for part in words]
    except (OSError, subprocess.CalledProcessError):
        return None
    commit, changes = (one.stdout.strip() for one in found)
    return commit + ("-dirty" if changes else "")


def _run(job: Job, plan: Plan, outcomes: Outcomes, seconds: float) -> dict[str, Any]:
    """Entry of a job under `runs`."""
    run = {name: getattr(job, name) for name in ("command", "arm", "seed", "sections", "overrides")}
    run |= {"key": checksum(plan.identities[job.name]), "seconds": seconds}
    if job.command == "train":
        metrics = outcomes.metrics(job)
        run |= {name: metrics[name] for name in ("parameters", "steps", "tokens")}
    return to_json(run)


def _corpora(done: Sequence[Job], outcomes: Outcomes) -> list[dict[str, Any]]:
    """Return every corpus that a training read, once."""
    found = [outcomes.metrics(job)["corpus"] for job in done if job.command == "train"]
    facts = [{name: one[name] for name in ("name", "level", "sha256", "by_line") if name in one} for one in found]
    return list({one["sha256"]: one for one in facts}.values())


def _settings(plan: Plan, done: Sequence[Job], outcomes: Outcomes) -> dict[str, str]:
    """Return the settings that the runs share, in words."""
    job = next((job for job in done if job.command == "train"), None)
    if job is None:
        return {}
    config, metrics = composed(job.overrides), outcomes.metrics(job)
    recipes = [composed(other.overrides).optimizer for other in plan.jobs if other.command == "train"]
    first, *others = dict.fromkeys(f"{recipe.name}, learning rate {recipe.lr:g}" for recipe in recipes)
    return {
        "model": f"{config.model.name}: {metrics['parameters']:,} parameters",
        "training": f"{metrics['steps']:,} steps of {config.data.batch_size} × {config.data.segment_len} tokens",
        "memory": f"{config.memory.mem_len} tokens in training (0 without recurrence)",
        "optimizer": "; some arms: ".join([first, *filter(None, ["; ".join(others)])]),
        "evaluation": "weights of the best validation; with recurrence a memory, without it a window before each; "
        "attention length chosen on validation",
        "precision": config.trainer.precision,
        "overrides": " ".join(plan.setup.overrides) or "none",
    }


def write_report(results: Mapping[str, Any], directory: Path) -> Path:
    """Write `results.json`, `report.md` and `report.html`, each atomically, and return the path of the last.

    Args:
        results: content of `results.json`.
        directory: folder of the report, with the figures that the sections name.

    Raises:
        UserError: a number is not finite, a figure is missing, or a file cannot be written.
    """
    try:
        content = json.dumps(results, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
        page = render(results, directory)
        write_text(directory / "results.json", content)
        write_text(directory / "report.md", page.as_markdown())
        write_text(directory / "report.html", page.as_html(results["title"], "running" in results["jobs"]))
    except ValueError as error:
        raise UserError(f"the report has a number that is not finite: {error}") from error
    except OSError as error:
        raise UserError(f"the report cannot be written: {error}") from error
    return directory / "report.html"


class Page:
    """Page that is written as Markdown and as HTML side by side; any text is escaped.

    Args:
        directory: folder of the figures.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.markdown: list[str] = []
        self.html: list[str] = []

    def heading(self, level: int, text: str, anchor: str = "") -> None:
        """Add a heading."""
        self.markdown += [f'<a id="{anchor}"></a>\n'] * bool(anchor) + [f"{'#' * level} {escape(text)}\n"]
        self.html.append(f'<h{level} id="{anchor}">{html_text(text)}</h{level}>')

    def links(self, parts: Mapping[str, str]) -> None:
        """Add a line of links, by anchor, to headings of the page."""
        self.markdown.append(" · ".join(f"[{escape(text)}](#{anchor})" for anchor, text in parts.items()) + "\n")
        links = " · ".join(f'<a href="#{anchor}">{html_text(text)}</a>' for anchor, text in parts.items())
        self.html.append(f"<nav>{links}</nav>")

    def text(self, text: str, strong: str = "", kind: str = "") -> None:
        """Add a paragraph; `strong` begins it, and `kind` quote or note sets it off."""
        begin = f"**{escape(strong)}** " if strong else ""
        self.markdown.append(f"{'> ' * (kind == 'quote')}{begin}{escape(text)}".rstrip() + "\n")
        begin = f"<strong>{html_text(strong)}</strong> " if strong else ""
        paragraph = f'<p class="{kind}">{begin}{html_text(text)}</p>'
        self.html.append(f"<blockquote>{paragraph}</blockquote>" if kind == "quote" else paragraph)

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]) -> None:
        """Add a table; columns for which `right` is true are aligned to the right."""
        self.markdown.append(markdown_table(header, rows, right))
        head, body = _html_row("th", header, right), "".join(_html_row("td", row, right) for row in rows)
        table = f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"
        self.html.append(f'<div class="scroll">{table}</div>')

    def figure(self, png: str, caption: str) -> None:
        """Add a figure, which the HTML holds itself.

        Raises:
            OSError: its file cannot be read.
        """
        data = base64.b64encode((self.directory / png).read_bytes()).decode()
        alt = caption.partition(":")[0]
        self.markdown.append(f"![{escape(alt)}]({png})\n\n{escape(caption)}\n")
        image = f'<img src="data:image/png;base64,{data}" alt="{html_text(alt)}" style="width:min(100%,44rem)">'
        self.html.append(f"<figure>{image}<figcaption>{html_text(caption)}</figcaption></figure>")

    @contextmanager
    def folded(self, title: str) -> Iterator[None]:
        """Fold what is added in the block."""
        for lines in (self.markdown, self.html):
            lines.append(f"<details><summary>{html_text(title)}</summary>\n")
        yield
        for lines in (self.markdown, self.html):
            lines.append("</details>\n")

    def as_markdown(self) -> str:
        """Return the page as Markdown."""
        return "\n".join(self.markdown).rstrip("\n") + "\n"

    def as_html(self, title: str, changes: bool = False) -> str:
        """Return the page with its style; one that `changes` loads itself again."""
        style = Path(__file__).with_name("report.css").read_text("utf-8")
        head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        head += '<meta http-equiv="refresh" content="20">' * changes
        head += f"<title>{html_text(title)}</title><style>{style}</style>"
        body = "\n".join(self.html)
        return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _html_row(tag: str, cells: Sequence[str], right: Sequence[bool]) -> str:
    kinds = (' class="right"' if at_right else "" for at_right in right)
    texts = (re.sub("(?<=[±≥,]) (?=[+−∞\\d])| (?=[↓↑])", "&nbsp;", html_text(cell)) for cell in cells)  # one number
    return f"<tr>{''.join(f'<{tag}{kind}>{text}</{tag}>' for kind, text in zip(kinds, texts, strict=True))}</tr>\n"


def render(results: Mapping[str, Any], directory: Path) -> Page:
    """Return the page of the content of `results.json`; the picture of the claims is drawn in `directory`.

    Raises:
        OSError: a figure cannot be read or written.
    """
    page = Page(directory)
    page.heading(1, results["title"])
    quoted = f"Columns headed paper are quoted from Dai et al. 2019 (arXiv:1901.02860): {results['differences']}."
    page.text(f"{quoted} Columns headed here were measured in this run.", results["note"], "quote")
    if not results["finished"]:
        _unfinished(page, results)
    parts = {"claims": "What holds here", "differences": "The differences"} if results.get("verdicts", True) else {}
    parts |= {f"section-{section['id']}": section["title"].partition(":")[0] for section in results["sections"]}
    page.links({**parts, "settings": SETTINGS})
    page.text(introduction(results))
    level = level_of(results)
    for table in (found for section in results["sections"] for found in section.get("tables", ())):
        if table["id"] == "table_6":
            page.table(*table_of(first_pair(table), level))
    page.text(UNITS, kind="note")
    if "claims" in parts:
        _claims(page, results, directory)
    for section in results["sections"]:
        _section(page, section, level)
    _settings_and_runs(page, results)
    return page


def level_of(results: Mapping[str, Any]) -> str:
    """Return the level of the tokens of the trainings; empty before one is finished."""
    return str(results["corpora"][0]["level"]) if results["corpora"] else ""


def first_pair(table_6: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rows of Table 6 with and without recurrence, with their test losses."""
    columns = [
        column for column in table_6["columns"] if column["key"] in ("arm", "seeds", "init", "bpb", "paper_init")
    ]
    rows = {arm.key: table_6["rows"][arm.key] for arm in (ON, OFF) if arm.key in table_6["rows"]}
    return {"columns": columns, "rows": rows}


def _unfinished(page: Page, results: Mapping[str, Any]) -> None:
    jobs = results["jobs"]
    finished = f"{jobs['finished']} of {jobs['planned']} jobs are finished"
    if "running" not in jobs:
        page.text(f"To continue: {results['command']}", f"Unfinished: {finished}.", "quote")
        return
    left = f"Running: {finished}, about {clock(jobs['seconds_left'])} left."
    page.text(f"As of {jobs['time']}; the page loads itself again until all are finished.", left, "quote")
    page.table(["running job", "state"], [[name, state] for name, state in jobs["running"].items()], [False, False])
    with page.folded(f"{len(jobs['waiting'])} jobs to come"):
        page.text(", ".join(jobs["waiting"]))


def _claims(page: Page, results: Mapping[str, Any], directory: Path) -> None:
    page.heading(2, "What holds here", "claims")
    for line in summary(results["claims"], results["finished"]):
        page.text(line)
    page.table(*claims_table(results["claims"]))
    page.text(RULE, kind="note")
    if picture := draw_effects(directory, side_by_side(results, directory)):
        page.figure(picture.png, picture.caption)
    page.heading(2, "The differences", "differences")
    for number, claim in enumerate(results["claims"], 1):
        page.text(f"{claim['paper']}. {claim['difference']}", f"{number}. {claim['claim']}.")
        page.table(
            ["difference", "mark", "effect here (+: as claimed)", "the same in percent", "paper, in percent"],
            rows_of(claim, level_of(results)),
            [False] * 2 + [True] * 3,
        )
        for note in dict.fromkeys(filter(None, (row.get("untested") for row in claim["rows"]))):
            page.text(f"–: {note}", kind="note")


def introduction(results: Mapping[str, Any]) -> str:
    """Return command, models, corpora, time and hardware in two sentences."""
    machine, trained = results["machine"], [run for run in results["runs"].values() if run["command"] == "train"]
    where = ", ".join(machine["gpus"]) or f"{machine['cores']} cores of an {machine['processor'] or 'unknown CPU'}"
    verb = "took" if results["finished"] else "has run for"
    took = f"{results['command']} {verb} {clock(results['seconds']['wall'])} on {where}"
    if not trained:
        return f"{took}. No training is finished."
    of = results["corpora"][0]
    # Up to version 0.4.0 subwords were those of lines, and results did not say so.
    by_line = ", line by line" * (of["level"] == "bpe" and of.get("by_line", True))
    corpus = f"{of['name']} ({of['level']} level{by_line})"
    size = f"{trained[0]['parameters'] / 1e6:.1f}M parameters on {trained[0]['tokens']:,} tokens each"
    return f"{took}. It trained {len(trained)} models of {size}, of {corpus}, unless a table says otherwise."


def summary(claims: Sequence[Mapping[str, Any]], finished: bool = True) -> list[str]:
    """Return in a sentence each which claims hold, which do not, and which effects grow or shrink with training."""
    marks = [{row["mark"] for row in claim["rows"]} - {"–"} for claim in claims]
    points = {n: [point for row in rows for point in growth(row)] for n, rows in courses(claims)}
    trends = [points.get(number, [0.0]) for number in range(1, len(claims) + 1)]
    late = f"by {GROWTH} percentage points or more from the middle to the end of training, in every comparison and seed"
    kinds = {
        "Holds in every comparison (✓ alone)": [found == {"✓"} for found in marks],
        "Holds in some comparisons, undecided in the others (✓ and ≈)": [found == {"✓", "≈"} for found in marks],
        "Mixed (✓ and ✗)": [{"✓", "✗"} <= found for found in marks],
        "Holds in none, the opposite in some (✗, no ✓)": ["✗" in found and "✓" not in found for found in marks],
        "Undecided (≈ alone)": [found == {"≈"} for found in marks],
        f"{'Cannot be told in this run' if finished else 'Not measured yet'} (–)": [not found for found in marks],
        f"The effect grows {late}": [min(trend) >= GROWTH for trend in trends],
        f"The effect shrinks {late}": [max(trend) <= -GROWTH for trend in trends],
    }
    named = [f"{claim['claim']} ({number})" for number, claim in enumerate(claims, 1)]
    chosen = {
        kind: [name for name, is_one in zip(named, which, strict=True) if is_one] for kind, which in kinds.items()
    }
    return [f"{kind}: {'; '.join(names)}." for kind, names in chosen.items() if names]


def growth(row: Mapping[str, Any]) -> list[float]:
    """Return how many percentage points an effect on validation gains from the middle to the end, for each seed."""
    ends = [row["tokens"][-1] / 2, row["tokens"][-1]]
    return [float(np.diff(np.interp(ends, row["tokens"], course))[0]) for course in row["course"].values()]


def side_by_side(results: Mapping[str, Any], directory: Path) -> dict[str, Sequence[Mapping[str, Any]]]:
    """Return the claims of this report, and those of the other profile of `SCALES` where its report lies beside it."""
    found = {results["profile"]: results["claims"]}
    for name in SCALES if results["profile"] in SCALES else ():
        other = JobFolder(directory.parent / name, "results.json").record
        if name != results["profile"] and other.get("claims"):
            found[name] = other["claims"]
    return found


def claims_table(claims: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]], list[bool]]:
    """Return header, rows and alignment of the table with a row for each claim."""
    rows = []
    for number, claim in enumerate(claims, 1):
        found = [row for row in claim["rows"] if "percent" in row]
        counts = Counter(row["mark"] for row in claim["rows"])
        marks = " ".join(f"{n if len(claim['rows']) > 1 else ''}{sign}" for sign in MARKS if (n := counts[sign])) or "–"
        effect = _in_percent(found[0]) if len(found) == 1 else _range([row["percent"] for row in found])
        paper = _range([row["paper"] for row in claim["rows"] if "paper" in row])
        rows.append([str(number), claim["claim"], marks, effect, paper])
    header = ["", "claim of the paper", "marks", "effect here (+: as claimed)", "effect in the paper"]
    return header, rows, [True, False, False, True, True]


def rows_of(claim: Mapping[str, Any], level: str = "") -> list[list[str]]:
    """Return a row of text for each difference of a claim: title, mark, effect, the same in percent, the paper's."""
    rows = []
    for row in claim["rows"]:
        effect, paper, unit = "", row.get("paper"), row.get("unit")
        if "effect" in row:
            digits = 3 if unit in (None, "bpc", "bpb") else 2 if unit == "ppl" else 0
            effect = f"{decimal(row['effect'], digits, True)}{f' {unit_words(unit, level)}' if unit else ''}"
            effect += f" {interval(row.get('low'), row.get('high'), digits)}"
        percent = _in_percent(row) if "percent" in row and unit != "%" else ""
        rows.append([row["title"], row["mark"], effect.strip(), percent, "" if paper is None else _percent(paper)])
    return rows


def _percent(value: float) -> str:
    return f"{decimal(value, 1 if abs(value) < 100 else 0, True)} %"


def _in_percent(row: Mapping[str, Any]) -> str:
    digits = 1 if abs(row["percent"]) < 100 else 0
    return f"{_percent(row['percent'])} {interval(row.get('percent_low'), row.get('percent_high'), digits)}".strip()


def _range(values: Sequence[float]) -> str:
    """Return the lowest and the highest of effects in percent."""
    return " to ".join(dict.fromkeys(map(_percent, (min(values), max(values))))) if values else ""


def _section(page: Page, section: Mapping[str, Any], level: str) -> None:
    page.heading(2, section["title"], f"section-{section['id']}")
    page.text(section["paper"], "Paper:")
    page.text(section["here"], "Here:")
    for table in filter(lambda table: table["rows"], section.get("tables", ())):
        page.text("", table["caption"])
        page.table(*table_of(table, level))
        for note in table.get("notes", ()):
            page.text(note, kind="note")
    for figure in section.get("figures", ()):
        page.figure(figure["png"], figure["caption"])


def table_of(table: Mapping[str, Any], level: str = "") -> tuple[list[str], list[list[str]], list[bool]]:
    """Return header, rows and alignment of a table of results; the paper's columns stand beside the names of the rows.

    A heading has its group, title and unit, and an arrow where lower is better.
    """
    columns = sorted(table["columns"], key=lambda column: list(HEADINGS).index(column["of"]))
    header = []
    for column in columns:
        title, unit = ": ".join(filter(None, (HEADINGS[column["of"]], column.get("title", "")))), column.get("unit")
        arrow = " ↓" * (unit in LOSSES and "difference" not in column["key"])
        header.append(f"{title}{arrow} ({unit_words(unit, level)})" if unit else title)
    rows = [[cell_text(row.get(column["key"])) for column in columns] for row in table["rows"].values()]
    return header, rows, [column["of"] != "label" for column in columns]


def _settings_and_runs(page: Page, results: Mapping[str, Any]) -> None:
    machine = results["machine"]
    page.heading(2, SETTINGS, "settings")
    seconds = results["seconds"]
    facts = {
        **results["settings"],
        **{f"data: {corpus['name']}": f"SHA-256 {corpus['sha256']}" for corpus in results["corpora"]},
        "time": f"{clock(seconds['wall'])}; {clock(seconds['training'])} of training in all jobs",
        "machine": f"{machine['cores']} cores, {machine['processor']}; {', '.join(machine['gpus']) or 'no GPU'}; "
        f"{machine['platform']}; Python {machine['python']}",
        "versions": ", ".join(f"{name} {number}" for name, number in results["versions"].items()),
        "command": f"{results['command']}; commit {results['commit'] or 'unknown'}",
    }
    page.table(["", ""], [[name, value] for name, value in facts.items()], [False, False])
    runs = results["runs"]
    with page.folded(f"All {len(runs)} runs"):
        header = ["run", "tokens", "time", "overrides of its command"]
        rows = [
            [name, decimal(run["tokens"], 0) if "tokens" in run else "", clock(run["seconds"]), _command(run)]
            for name, run in runs.items()
        ]
        page.table(header, rows, [False, True, True, False])


def _command(run: Mapping[str, Any]) -> str:
    return " ".join(["txl", run["command"], *run["overrides"]])
