"""Render a report again: `python -m experiments.report DIRECTORY` reads `results.json` there."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from experiments.report.rendering import render_again
from txl_lightning.errors import UserError


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line, render, and print the path of the report."""
    parser = argparse.ArgumentParser(prog="python -m experiments.report", description=__doc__)
    parser.add_argument("directory", type=Path, help="folder with results.json and its figures")
    try:
        report = render_again(parser.parse_args(arguments).directory)
    except UserError as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    print(f"report: {report}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
