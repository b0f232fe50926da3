"""Pages of the documentation: their commands and code blocks."""

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, ROOT / "sweeps/README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^( *)```(\w+)\n(.*?)^\1```", re.M | re.S)


def name_of(page: Path) -> str:
    """Return the path of a page from the root of the project."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    """Return the code blocks of a language."""
    return [code for _, found, code in FENCE.findall(page.read_text()) if found == language]


def prose(page: Path) -> str:
    """Return a page without its code blocks."""
    return FENCE.sub("", page.read_text())


def commands(pages: list[Path] = PAGES) -> list[tuple[str, ...]]:
    """Return the words of every line in the `console` blocks of pages, without repetitions."""
    found = {}
    for page in pages:
        text = "\n".join(blocks(page, "console")).replace("\\\n", " ")
        for line in text.splitlines():
            words = tuple(shlex.split(line, comments=True))
            if words:
                found[words] = None
    return list(found)
