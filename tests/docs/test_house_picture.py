"""Compare the tree of docs/house.md with the code: both have the same folders."""

import subprocess
from pathlib import PurePosixPath

import pytest

from tests.docs.pages import ROOT, blocks

NOT_DRAWN = ("tests/", ".", "experiments/results/laptop")


def drawn() -> set[str]:
    """Folders of the picture; four spaces are one level."""
    folders, above = set(), []
    for line in blocks(ROOT / "docs/house.md", "text")[0].splitlines():
        name = line.split()[0] if line.strip() else ""
        if not name.endswith("/"):
            continue
        depth = (len(line) - len(line.lstrip())) // 4
        above = [*above[:depth], name.rstrip("/")]
        folders.add("/".join(above))
    return folders


def in_the_code() -> set[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("no git checkout")
    parents = {parent for file in listed.stdout.split() for parent in PurePosixPath(file).parents}
    folders = {parent.as_posix() for parent in parents}
    return {folder for folder in folders if not folder.startswith(NOT_DRAWN)}


def test_the_picture_is_the_codes() -> None:
    found = in_the_code()
    # The line of `hydra/launcher/` stands for `hydra/` too.
    assert drawn() - found == set()
    assert {folder for folder in found - drawn() if not any(d.startswith(f"{folder}/") for d in drawn())} == set()
