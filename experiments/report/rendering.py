"""The report: `results.json` checked against its schema and rendered as `report.html` and `report.md`.

`python -m experiments.report.rendering DIRECTORY` renders both again from the `results.json` there.
"""

from __future__ import annotations

import argparse
import base64
import json
import struct
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jinja2

from experiments.report import markdown as report_markdown
from experiments.report import view as report_view
from experiments.report.check import check_results as check_results
from txl_lightning.errors import UserError
from txl_lightning.files import write_atomically

HERE = Path(__file__).parent
TITLES = {
    "smoke": "Transformer-XL, a smoke run",
    "laptop": "Transformer-XL at laptop size",
    "gpu": "Transformer-XL at the size of one GPU",
    "paper": "Transformer-XL at the paper’s size",
}
OTHERNESS = {
    "smoke": "other models, other data, other hardware",
    "laptop": "other models, other data, other hardware",
    "gpu": "smaller models, shorter training, other hardware",
    "paper": "another implementation, other hardware",
}
LARGEST_SVG = 300_000  # bytes; a larger one is slower to draw than its PNG
PNG_START = b"\x89PNG\r\n\x1a\n"


def write_report(results: Mapping[str, Any], directory: Path) -> Path:
    """Check the results and write `results.json`, `report.md` and `report.html`, each whole or not at all.

    Args:
        results: as `results.schema.json` says.
        directory: where they go; the figures lie there already, at the paths that the results name.

    Returns:
        The path of `report.html`.

    Raises:
        UserError: the results are not as the schema says, a figure is missing, or a file cannot be written.
    """
    check_results(results)
    text = json.dumps(results, indent=2) + "\n"
    return _write({"results.json": text, **render(json.loads(text), directory)}, directory)


def render(results: Mapping[str, Any], directory: Path) -> dict[str, str]:
    """`report.md` and `report.html` of checked results, by file name; figures are read from `directory`."""
    html = _environment(autoescape=True)
    markdown = _environment(autoescape=False, finalize=report_markdown.escape)
    markdown.globals.update(pipe_table=report_markdown.pipe_table, results_table=report_markdown.results_table)
    markdown.filters.update(code=report_markdown.code, fence=report_markdown.fence, linked=report_markdown.linked)
    short = {section["id"]: section["title"].partition(":")[0] for section in results["sections"]}
    context = {
        **results,
        "title": TITLES[results["profile"]],
        "otherness": OTHERNESS[results["profile"]],
        "sections": [_section(section, directory) for section in results["sections"]],
        "short": short,
        "section_of": {table["id"]: s["id"] for s in results["sections"] for table in s["tables"]},
        "counts": report_view.mark_counts(results["claims"]),
        "facts": _facts(results),
    }
    return {
        "report.md": markdown.get_template("report.md.jinja").render(context),
        "report.html": html.get_template("report.html.jinja").render(context),
    }


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line, render, and print where the report is."""
    parser = argparse.ArgumentParser(prog="python -m experiments.report.rendering", description=__doc__)
    parser.add_argument("directory", type=Path, help="with results.json and its figures")
    path = parser.parse_args(arguments).directory / "results.json"
    try:
        results = read_results(path)
        check_results(results)
        report = _write(render(results, path.parent), path.parent)
    except UserError as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    print(f"report: {report}")
    return 0


def read_results(path: Path) -> dict[str, Any]:
    """The contents of a `results.json`, not yet checked.

    Raises:
        UserError: there is none, or it is no JSON.
    """
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error})") from error


def _write(pages: Mapping[str, str], directory: Path) -> Path:
    for name, page in pages.items():
        content = page.encode("utf-8", "backslashreplace")
        try:
            directory.mkdir(parents=True, exist_ok=True)
            write_atomically(directory / name, partial(Path.write_bytes, data=content))
        except OSError as error:
            raise UserError(f"{directory / name} cannot be written ({error.strerror or error})") from error
    return directory / "report.html"


def _environment(**options: Any) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **options,
    )
    environment.globals.update(signs=report_view.SIGNS)
    environment.filters.update(
        visible=report_view.visible, duration=report_view.duration, number=lambda value: report_view.number(value, 0)
    )
    return environment


def _section(section: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    return {
        **section,
        "tables": [report_view.table_view(table) for table in section["tables"]],
        "figures": [{**figure, **_image(figure, directory)} for figure in section.get("figures", [])],
        "samples": section.get("samples", []),
    }


def _image(figure: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """`source`, a data URI, and `width` and `height` of a figure, in pixels of a page (96 to the inch).

    Raises:
        UserError: a file is missing, or the PNG is none.
    """
    try:
        picture = (directory / figure["png"]).read_bytes()
        drawing = (directory / figure["svg"]).read_bytes() if figure["svg"] else None
    except OSError as error:
        raise UserError(f"figure {error.filename} cannot be read ({error.strerror})") from error
    if not picture.startswith(PNG_START):
        raise UserError(f"figure {directory / figure['png']} is not a PNG")
    width, height = struct.unpack(">II", picture[16:24])
    kind, data = ("png", picture)
    if drawing is not None and len(drawing) < LARGEST_SVG:
        kind, data = ("svg+xml", drawing)
    scale = 96 / 150  # figures are saved with 150 dots to the inch
    source = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return {"source": source, "width": round(width * scale), "height": round(height * scale)}


def _facts(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Hardware and time, as pairs of text."""
    machine, seconds = results["machine"], results["seconds"]
    return [
        ("processor", f"{machine['processor'] or 'unknown'}, {machine['cores']} cores"),
        ("GPUs", ", ".join(machine["gpus"]) or "none"),
        ("platform", machine["platform"]),
        ("Python", machine["python"]),
        ("started", results["started"]),
        ("time, by the clock", report_view.duration(seconds["wall"])),
        ("time of all trainings", f"{report_view.duration(seconds['training'])} (sum; some ran side by side)"),
        ("time of everything else", f"{report_view.duration(seconds['rest'])} (sum; some ran side by side)"),
    ]


if __name__ == "__main__":
    sys.exit(main())
