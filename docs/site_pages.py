"""Hooks of mkdocs.yml: the site has the pages of the whole repository, at their paths, so that links hold in both."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    "*.md",
    "docs/*.md",
    "docs/*.css",
    "docs/*.json",
    "docs/upstream/README.md",
    "sweeps/README.md",
    "tests/README.md",
]
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(?=[)#])")
PICTURE = re.compile(r'(?<=src=")[^"]+')


def shown() -> list[str]:
    """Return the paths of all files of the site: pages, and the pictures of the README."""
    pages = [path.relative_to(ROOT).as_posix() for pattern in PAGES for path in ROOT.glob(pattern)]
    return [*pages, *PICTURE.findall((ROOT / "README.md").read_text("utf-8"))]


def with_links_to_source(markdown: str, page: str, repository: str | None) -> str:
    """Return the text of a page; links to files and folders that are not of the site lead to the repository.

    Args:
        markdown: text of the page.
        page: its path.
        repository: address of the repository at its host; None for this checkout.
    """
    base, on_site = f"{repository}/blob/HEAD" if repository else ROOT.as_uri(), set(shown())

    def target(found: re.Match[str]) -> str:
        path = (ROOT / page).parent.joinpath(found[1]).resolve()
        if not path.exists() or not path.is_relative_to(
            ROOT
        ):  # an address, or for MkDocs to complain about
            return found[1]
        name = path.relative_to(ROOT).as_posix()
        return found[1] if name in on_site else f"{base}/{name}"

    return LINK.sub(target, markdown)


def on_files(files: Any, config: Any) -> Any:
    """Replace the files of docs/ by those of the site."""
    from mkdocs.structure.files import File

    for file in [file for file in files if file.src_dir == config.docs_dir]:
        files.remove(file)
    for path in shown():
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Resolve the links of a page."""
    return with_links_to_source(markdown, page.file.src_uri, config.repo_url)
