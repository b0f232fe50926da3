"""The reading paths of docs/house.md, and its example of a measurement."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.in_process import run_txl
from tests.own_guests import no_guests  # noqa: F401 - a fixture

PAGE = ROOT / "docs/house.md"
# The design's limits: how many files a reader opens on each path.
LIMITS = (9, 3, 5, 12, 9, 6, 2)


@pytest.mark.usefixtures("no_guests")
@pytest.mark.slow
def test_a_measurement_of_a_user_is_listed_and_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TXL_GUESTS", str(ROOT / "examples/dynamic_evaluation.py"))
    assert "loss of a checkpoint that learns from the text" in run_txl("--help").out
    assert "lr=0.1" in run_txl("dynamic", "--help").out
    without = run_txl("dynamic", "hydra.run.dir=none", directory=tmp_path)
    assert "txl dynamic: checkpoint: must be given" in without.err


def reading_paths() -> list[list[str]]:
    """Return the files of each reading path, relative to the root of the project."""
    rows = re.findall(r"^\| [^|]+ \| (\[.+\), \[.+) \|$", PAGE.read_text(), re.M)
    paths = []
    for row in rows:
        links = re.findall(r"\]\(([^)]+)\)", row)
        paths.append([link.removeprefix("../") for link in links])
    return paths


def test_reading_paths_are_short() -> None:
    for path, limit in zip(reading_paths(), LIMITS, strict=True):
        assert len(path) <= limit, path


def test_each_file_of_a_reading_path_is_named_by_an_earlier_one() -> None:
    for path in reading_paths():
        text = (ROOT / path[0]).read_text()
        for file in path[1:]:
            module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            package, _, name = module.rpartition(".")
            imported = rf"\b{module}\b|from {package} import .*\b{name}\b|{file}"
            assert re.search(imported, text), file
            text += (ROOT / file).read_text()
