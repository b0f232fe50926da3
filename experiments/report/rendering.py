"""Pages of the report: `results.json` rendered as `report.html` and `report.md`."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from experiments.report import markdown as report_markdown
from experiments.report import view as report_view
from experiments.report.check import check_results
from experiments.report.claims_picture import ALT, CAPTION, FILE, draw_claims
from experiments.report.sections import Figure, Section, section_from_json
from txl_lightning.errors import UserError
from txl_lightning.files import write_text

TEMPLATES = Path(__file__).parent / "templates"
TITLES = {
    "smoke": "Transformer-XL, a smoke run",
    "laptop": "Transformer-XL at laptop size",
    "evening": "Transformer-XL at laptop size, all rows",
    "gpu": "Transformer-XL at the size of one GPU",
    "paper": "Transformer-XL at the paper’s size",
}
DIFFERENCES = {
    "smoke": "other models, other data, other hardware",
    "laptop": "other models, other data, other hardware",
    "evening": "other models, other data, other hardware",
    "gpu": "smaller models, shorter training, other hardware",
    "paper": "another implementation, other hardware",
}
MOST_STACKED = 5  # columns; on a phone, rows of a table with more would be too tall as blocks
LARGEST_SVG = 300_000  # bytes; browsers draw a larger one more slowly than its PNG
PNG_START = b"\x89PNG\r\n\x1a\n"


def write_report(results: Mapping[str, Any], directory: Path) -> Path:
    """Check results and write `results.json`, `report.md` and `report.html`, each atomically.

    Args:
        results: as `results.schema.json` says.
        directory: folder of the report; the figures are there already, at the paths that the results name.

    Returns:
        The path of `report.html`.

    Raises:
        UserError: the results do not follow the schema, a figure is missing, or a file cannot be written.
    """
    check_results(results)
    text = json.dumps(results, indent=2) + "\n"
    return _write({"results.json": text, **render(json.loads(text), directory)}, directory)


def render_again(directory: Path) -> Path:
    """Write `report.md` and `report.html` again from the `results.json` of a report.

    Returns:
        The path of `report.html`.

    Raises:
        UserError: as `write_report` and `read_results`.
    """
    results = read_results(directory / "results.json")
    check_results(results)
    return _write(render(results, directory), directory)


def read_results(path: Path) -> dict[str, Any]:
    """Read a `results.json` without checking it.

    Raises:
        UserError: the file cannot be read or is not JSON.
    """
    try:
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error})") from error
    return found


def render(results: Mapping[str, Any], directory: Path) -> dict[str, str]:
    """Return `report.md` and `report.html` of checked results, by file name.

    Figures are read from `directory`; the picture of the claims is drawn there.
    """
    html = _environment(autoescape=True)
    markdown = _environment(autoescape=False, finalize=report_markdown.escape)
    markdown.globals.update(pipe_table=report_markdown.pipe_table, results_table=report_markdown.results_table)
    markdown.filters.update(code=report_markdown.code, fence=report_markdown.fence, linked=report_markdown.linked)
    sections = [section_from_json(section) for section in results["sections"]]
    context = {
        **results,
        "title": TITLES[results["profile"]],
        "differences": DIFFERENCES[results["profile"]],
        "sections": [_section_view(section, directory) for section in sections],
        "short": {section.id: section.title.partition(":")[0] for section in sections},
        "captions": {table.id: table.caption for section in sections for table in section.tables},
        "facts": _facts(results),
        "rule": results.get("rule", report_view.FORMER_RULE),
        "summary": report_view.summary(results["claims"]),
        "claim_rows": [report_view.claim_view(claim) for claim in results["claims"]],
        "picture": _claims_picture(results["claims"], directory),
    }
    return {
        "report.md": markdown.get_template("report.md.jinja").render(context),
        "report.html": html.get_template("report.html.jinja").render(context),
    }


def _write(pages: Mapping[str, str], directory: Path) -> Path:
    for name, page in pages.items():
        encodable = page.encode("utf-8", "backslashreplace").decode()  # a model may write lone surrogates
        try:
            directory.mkdir(parents=True, exist_ok=True)
            write_text(directory / name, encodable)
        except OSError as error:
            raise UserError(f"{directory / name} cannot be written ({error.strerror or error})") from error
    return directory / "report.html"


def _environment(**options: Any) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **options,
    )
    environment.globals.update(signs=report_view.SIGNS, most_stacked=MOST_STACKED)
    environment.filters.update(
        visible=report_view.visible, duration=report_view.duration, number=lambda value: report_view.number(value, 0)
    )
    return environment


def _claims_picture(claims: Sequence[Mapping[str, Any]], directory: Path) -> dict[str, Any] | None:
    """Draw the picture of the claims and return it as figures are; None for files of older versions."""
    if not claims or not all("effect" in claim for claim in claims):
        return None
    draw_claims(directory / FILE, claims)
    figure = Figure(FILE, FILE.replace(".png", ".svg"), CAPTION, ALT)
    return {**vars(figure), **_image(figure, directory)}


def _section_view(section: Section, directory: Path) -> dict[str, Any]:
    return {
        **vars(section),
        "tables": [report_view.table_view(table) for table in section.tables],
        "figures": [{**vars(figure), **_image(figure, directory)} for figure in section.figures],
    }


def _image(figure: Figure, directory: Path) -> dict[str, Any]:
    """Return `source` (a data URI), `width` and `height` of a figure, in CSS pixels (96 per inch).

    Raises:
        UserError: a file is missing, or the PNG is damaged.
    """
    try:
        picture = (directory / figure.png).read_bytes()
        drawing = (directory / figure.svg).read_bytes() if figure.svg else None
    except OSError as error:
        raise UserError(f"figure {error.filename} cannot be read ({error.strerror})") from error
    if not picture.startswith(PNG_START):
        raise UserError(f"figure {directory / figure.png} is not a PNG")
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
        ("wall-clock time", report_view.duration(seconds["wall"])),
        ("time of all trainings", f"{report_view.duration(seconds['training'])} (sum; some ran in parallel)"),
        ("time of everything else", f"{report_view.duration(seconds['rest'])} (sum; some ran in parallel)"),
    ]
