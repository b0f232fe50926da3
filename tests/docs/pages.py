"""Pages of the documentation: their commands, code blocks and generated blocks."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "sweeps/README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^( *)```(\w+)\n(.*?)^\1```", re.M | re.S)


class Command(NamedTuple):
    """A line of a `console` block."""

    page: str
    words: tuple[str, ...]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    return [code for _, found, code in FENCE.findall(page.read_text()) if found == language]


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return FENCE.sub("", page.read_text())


def commands() -> list[Command]:
    """Commands of all pages, without repetitions."""
    found: dict[tuple[str, ...], Command] = {}
    for page in PAGES:
        lines = "\n".join(blocks(page, "console")).replace("\\\n", " ").splitlines()
        for line in filter(None, lines):
            words = tuple(shlex.split(line, comments=True))
            found.setdefault(words, Command(name_of(page), words))
    return list(found.values())
