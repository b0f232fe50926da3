"""Files of the report: `results.json`, as `results.schema.json` says, `report.html`, and `report.md` for GitHub."""

from __future__ import annotations

import base64
import json
import platform
import re
import struct
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2
import torch
from markupsafe import Markup

from experiments.engine.jobs import Job, Outcomes, composed
from experiments.engine.plan import Plan, Stopwatch
from experiments.engine.profiles import PROFILES
from experiments.report import sections as text
from experiments.report.pictures import (
    CLAIMS_ALT,
    CLAIMS_CAPTION,
    CLAIMS_FILE,
    OVERVIEW_ALT,
    OVERVIEW_CAPTION,
    OVERVIEW_FILE,
    draw_claims,
    draw_overview,
)
from experiments.report.sections import HEADINGS, Figure, Section, Table, to_json
from experiments.report.verdicts import COLUMNS, RULE, SIGNS, claim_text, counts, failures, mark_of, part_rows
from txl_lightning.cli import COMMANDS
from txl_lightning.errors import UserError
from txl_lightning.files import write_text
from txl_lightning.jobs.identity import code_of
from txl_lightning.reporting.machine import cores, processor
from txl_lightning.reporting.tables import escape, markdown_table

LIBRARIES = ("txl_lightning", "torch", "lightning", "hydra-core", "wandb", "torchmetrics", "datasets")
TEMPLATES = Path(__file__).parent / "templates"
ROOT = Path(__file__).parents[2]
CLAIMS = ROOT / "experiments" / "claims.yaml"
MOST_STACKED = 5  # columns; on a phone, rows of a table with more would be too tall as blocks
LARGEST_SVG = 300_000  # bytes; browsers draw a larger one more slowly than its PNG


def assemble(
    plan: Plan,
    outcomes: Outcomes,
    sections: Sequence[Section],
    claims: list[dict[str, Any]],
    watch: Stopwatch,
    progress: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the content of `results.json`, with the sections themselves in place of their JSON.

    Args:
        plan: jobs of the reproduction.
        outcomes: results of those that are finished.
        sections: sections of the report, in order.
        claims: judged, as `claims.judged` returns them.
        watch: wall-clock time so far.
        progress: jobs done, running and left, as the schema says; None once all are finished.
    """
    profile = plan.setup.profile
    n_gpus = torch.cuda.device_count() if profile.accelerator == "gpu" else 0
    gpus = [torch.cuda.get_device_name(i) for i in range(n_gpus)]
    runs = {job.name: _run(job, plan, outcomes) for job in plan.jobs if outcomes.has(job)}
    seconds = {"wall": watch.seconds, "training": 0.0, "rest": 0.0}
    for run in runs.values():
        seconds["training" if run["command"] == "train" else "rest"] += run["seconds"]
    return {
        "schema_version": 2,
        "finished": progress is None,
        "progress": progress,
        "profile": profile.name,
        "note": profile.note,
        "command": plan.setup.command,
        "started": watch.began,
        "seconds": {kind: round(value, 1) for kind, value in seconds.items()},
        "machine": {
            "processor": processor(),
            "cores": cores(),
            "gpus": gpus,
            "python": platform.python_version(),
            "platform": platform.platform(),
        },
        "versions": {name: version(name) for name in LIBRARIES},
        "code": code_of(*(f"{row.package}.command" for row in COMMANDS.values())),
        "rules": sha256(
            f"{code_of('experiments.tables', 'experiments.claims')} {CLAIMS.read_text()}".encode()
        ).hexdigest(),
        "commit": _commit(),
        "corpora": _corpora([job for job in plan.jobs if outcomes.has(job)], outcomes),
        "settings": _settings(plan, outcomes),
        "runs": runs,
        "sections": sections,
        "rule": RULE,
        "claims": claims,
    }


@cache
def _commit() -> str | None:
    """Commit of the checkout, with `-dirty` if its files differ; None outside of one, or without git."""
    if not (ROOT / ".git").exists():
        return None
    words = (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
    try:
        found = [subprocess.run(["git", *part], cwd=ROOT, capture_output=True, text=True, check=True) for part in words]
    except (OSError, subprocess.CalledProcessError):
        return None
    commit, changes = (one.stdout.strip() for one in found)
    return commit + ("-dirty" if changes else "")


def _run(job: Job, plan: Plan, outcomes: Outcomes) -> dict[str, Any]:
    """Entry of a job under `runs`."""
    run: dict[str, Any] = {
        "command": job.command,
        "arm": job.arm,
        "seed": job.seed,
        "sections": list(job.sections),
        "overrides": list(job.overrides),
        "key": plan.keys[job.name],
        "seconds": plan.record(job).get("seconds", 0.0),
        "directory": f"runs/{job.name}",
    }
    if job.command == "train":
        metrics = outcomes.metrics(job)
        run |= {name: metrics[name] for name in ("parameters", "steps", "tokens")}
    return run


def _corpora(jobs: list[Job], outcomes: Outcomes) -> list[dict[str, Any]]:
    """Every corpus once, with the ids of the sections that used it."""
    found: dict[str, dict[str, Any]] = {}
    for job in jobs:
        if job.command == "train":
            corpus = outcomes.metrics(job)["corpus"]
            entry = found.setdefault(corpus["sha256"], {**corpus, "used_by": []})
            entry["used_by"] = list(dict.fromkeys((*entry["used_by"], *job.sections)))
    return list(found.values())


def _optimizers(jobs: list[Job]) -> str:
    """Recipe of the first training, and the optimizers and learning rates of others that differ in them."""
    recipes = [composed(job.overrides).optimizer for job in jobs if job.command == "train"]
    first, *others = dict.fromkeys(f"{recipe.name}, learning rate {recipe.lr:g}" for recipe in recipes)
    also = f"; some arms: {'; '.join(others)}" if others else ""
    schedule = "cosine to 0" if recipes[0].schedule == "cosine" else recipes[0].schedule
    return f"{first}, {recipes[0].warmup_steps} steps of warm-up, {schedule}{also}"


def _settings(plan: Plan, outcomes: Outcomes) -> list[list[str]]:
    """Settings that all runs share, as pairs of text."""
    first = next((job for job in plan.jobs if job.command == "train" and outcomes.has(job)), None)
    if first is None:
        return [["profile", plan.setup.profile.name]]
    config, metrics = composed(first.overrides), outcomes.metrics(first)
    evaluation = metrics["evaluation"]
    return [
        ["model", f"{config.model.name}: {metrics['parameters']:,} parameters"],
        [
            "training",
            f"{metrics['steps']:,} steps of {config.data.batch_size} streams × {config.data.segment_len} tokens",
        ],
        ["memory", f"{config.memory.mem_len} tokens in training (0 without recurrence)"],
        ["optimizer", _optimizers(plan.jobs)],
        [
            "evaluation",
            f"{evaluation['batch_size']} streams that start without context; with recurrence a memory, without it a "
            "window before every token; attention length chosen on validation",
        ],
        ["weights", "those of the best validation"],
        ["precision", config.trainer.precision],
        ["overrides", " ".join(plan.setup.overrides) or "none"],
    ]


def write_report(results: Mapping[str, Any], directory: Path) -> Path:
    """Write `results.json`, `report.md` and `report.html`, each atomically.

    Args:
        results: of `assemble`: as `results.schema.json` says, but with the sections themselves.
        directory: folder of the report; the figures are there already, at the paths that the sections name.

    Returns:
        The path of `report.html`.

    Raises:
        UserError: a number is not finite, a figure is missing, or a file cannot be written.
    """
    try:
        pages = {"results.json": json.dumps(to_json(results), indent=2, allow_nan=False) + "\n"}
    except ValueError as error:
        raise UserError(f"results.json: a number of the report is not finite ({error})") from error
    for name, page in (pages | render(results, directory)).items():
        encodable = page.encode("utf-8", "backslashreplace").decode()  # a model may write lone surrogates
        try:
            directory.mkdir(parents=True, exist_ok=True)
            write_text(directory / name, encodable)
        except OSError as error:
            raise UserError(f"{directory / name} cannot be written ({error.strerror or error})") from error
    return directory / "report.html"


def render(results: Mapping[str, Any], directory: Path) -> dict[str, str]:
    """Return `report.md` and `report.html` of results as in `write_report`, by file name.

    Figures are read from `directory`; the pictures of the first page are drawn there.
    """
    html = _environment(autoescape=True)
    markdown = _environment(autoescape=False, finalize=escape)
    markdown.globals.update(pipe_table=pipe_table, results_table=results_table)
    markdown.filters.update(code=code, fence=fence, linked=linked)
    sections: Sequence[Section] = results["sections"]
    claims: Sequence[Mapping[str, Any]] = results["claims"]
    profile = PROFILES[results["profile"]]
    context = {
        **results,
        "title": profile.title,
        "differences": profile.differences,
        "images": {figure.png: _image(figure, directory) for section in sections for figure in section.figures},
        "short": {section.id: section.title.partition(":")[0] for section in sections},
        "captions": {table.id: table.caption for section in sections for table in section.tables},
        "facts": _facts(results),
        "intro": introduction(results),
        "counts": counts(claims),
        "failures": failures(claims),
        "claim_rows": [claim_text(claim) for claim in claims],
        "marks": [mark_of(claim) for claim in claims],
        "parts": part_rows(claims),
        "pictures": _pictures(results, directory),
        "columns": COLUMNS,
    }
    return {
        "report.md": markdown.get_template("report.md.jinja").render(context),
        "report.html": html.get_template("report.html.jinja").render(context),
    }


def _environment(**options: Any) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **options,
    )
    environment.globals.update(signs=SIGNS, most_stacked=MOST_STACKED, column_groups=column_groups)
    environment.globals.update({name: getattr(text, name) for name in ("common_seeds", "notes", "values_by_seed")})
    environment.filters.update(
        {name: getattr(text, name) for name in ("cell_text", "seeds_text", "duration", "visible")}
    )
    environment.filters.update(number=lambda value: text.decimal(value, 0))
    return environment


def column_groups(table: Table) -> list[tuple[str, str, int]]:
    """Return heading, `of` and number of columns of each group of neighbours of the same `of`."""
    groups = groupby(table.columns, lambda column: column.of)
    return [(HEADINGS[of], of, len(list(columns))) for of, columns in groups]


def introduction(results: Mapping[str, Any]) -> str:
    """Return corpus, model, training, optimizer, hardware and time in a sentence or two."""
    machine, settings = results["machine"], dict(results["settings"])
    where = ", ".join(machine["gpus"]) or f"{machine['cores']} cores of an {machine['processor'] or 'unknown CPU'}"
    spent = f"{text.duration(results['seconds']['wall'])} on {where}"
    trainings = [run for run in results["runs"].values() if run["command"] == "train"]
    if not trainings:
        return f"No training is finished yet: {spent} so far."
    tokens = max(trainings, key=lambda run: sum(other["tokens"] == run["tokens"] for other in trainings))["tokens"]
    corpora = " and ".join(f"{corpus['name']} ({corpus['level']} level)" for corpus in results["corpora"])
    return (
        f"{len(trainings)} models were trained on {corpora}, the first with {trainings[0]['parameters']:,} parameters, "
        f"on {tokens:,} tokens each unless a table says otherwise. Optimizer: {settings['optimizer']}. "
        f"It took {spent}{'' if results['finished'] else ' so far'}."
    )


def _pictures(results: Mapping[str, Any], directory: Path) -> list[dict[str, Any]]:
    """Draw the pictures of the arms and of the claims, as far as there is something to draw, and return them."""
    claims: Sequence[Mapping[str, Any]] = results["claims"]
    tables = [table for section in results["sections"] for table in section.tables if table.id == "table_6"]
    drawn = []
    if tables and _draw(directory / OVERVIEW_FILE, tables[0], draw_overview):
        caption = f"{tables[0].caption}: {OVERVIEW_CAPTION}"
        drawn.append(Figure(OVERVIEW_FILE, OVERVIEW_FILE.replace(".png", ".svg"), caption, OVERVIEW_ALT))
    if _draw(directory / CLAIMS_FILE, claims, draw_claims):
        drawn.append(Figure(CLAIMS_FILE, CLAIMS_FILE.replace(".png", ".svg"), CLAIMS_CAPTION, CLAIMS_ALT))
    return [{**vars(figure), **_image(figure, directory)} for figure in drawn]


_DRAWN: dict[Path, tuple[str, bool]] = {}
"""For each picture what it was drawn from, and whether there was something to draw."""


def _draw(path: Path, content: Any, draw: Callable[[Path, Any], bool]) -> bool:
    """Draw a picture unless its content is unchanged; drawing takes longer than the rest of the page."""
    described = repr(content)
    if path not in _DRAWN or _DRAWN[path][0] != described or (_DRAWN[path][1] and not path.exists()):
        _DRAWN[path] = described, draw(path, content)
    return _DRAWN[path][1]


def _image(figure: Figure, directory: Path) -> dict[str, Any]:
    """Return `source` (a data URI), `width` and `height` of a figure, in CSS pixels (96 per inch).

    Raises:
        UserError: a file is missing.
    """
    try:
        picture = (directory / figure.png).read_bytes()
        drawing = (directory / figure.svg).read_bytes() if figure.svg else None
    except OSError as error:
        raise UserError(f"figure {error.filename} cannot be read ({error.strerror})") from error
    width, height = struct.unpack(">II", picture[16:24])
    kind, data = ("png", picture)
    if drawing is not None and len(drawing) < LARGEST_SVG:
        kind, data = ("svg+xml", drawing)
    scale = 96 / 150  # figures are saved with 150 dots per inch
    source = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return {"source": source, "width": round(width * scale), "height": round(height * scale)}


def _facts(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Hardware and time, as pairs of text."""
    machine, seconds = results["machine"], results["seconds"]
    return [
        ("CPU", f"{machine['processor'] or 'unknown'}, {machine['cores']} cores"),
        ("GPUs", ", ".join(machine["gpus"]) or "none"),
        ("platform", machine["platform"]),
        ("Python", machine["python"]),
        ("started", results["started"]),
        ("wall-clock time", text.duration(seconds["wall"])),
        ("time of all trainings", f"{text.duration(seconds['training'])} (sum; some ran in parallel)"),
        ("time of everything else", f"{text.duration(seconds['rest'])} (sum; some ran in parallel)"),
    ]


def linked(value: object) -> Markup:
    """Escape text for the brackets of a link or an image."""
    return Markup(re.sub(r"(?<!\\)[\[\]]", r"\\\g<0>", escape(value)))


def code(value: object) -> Markup:
    """Return text as inline code; between backticks, pipes could not be escaped."""
    return Markup(f"<code>{escape(value)}</code>") if str(value).strip() else Markup("")


def fence(value: str) -> Markup:
    """Return text as a code block, fenced by more backticks than it has in a row."""
    longest = max((len(run) for run in re.findall(r"`+", value)), default=0)
    ticks = "`" * max(3, longest + 1)
    return Markup(f"{ticks}text\n{value}\n{ticks}")


def pipe_table(header: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[bool] | None = None) -> Markup:
    """Return a pipe table of any text; columns for which `right` is true are aligned to the right."""
    return Markup(markdown_table(header, rows, right or [False] * len(header)).rstrip("\n"))


def results_table(table: Table) -> Markup:
    """Return a table of the report; each heading has its group (`here` or `paper`), title and unit."""
    common = text.common_seeds(table)
    return pipe_table(
        [column.heading for column in table.columns],
        [[text.cell_text(row[column.key], common) for column in table.columns] for row in table.rows.values()],
        [column.of != "label" for column in table.columns],
    )
