"""The measurement and the reading paths of docs/house.md."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks
from tests.in_process import run_txl, success
from tests.own_guests import no_guests  # noqa: F401 - a fixture
from tests.training.small_run import trained

PAGE = ROOT / "docs/house.md"
# The design's limits: how many files a reader opens on each path.
LIMITS = (9, 3, 5, 12, 9, 6, 2)


@pytest.mark.usefixtures("no_guests")
@pytest.mark.slow
def test_the_measurement_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "\n".join(blocks(PAGE, "python")[1:])
    (tmp_path / "share.py").write_text(code)
    monkeypatch.setenv("TXL_GUESTS", str(tmp_path / "share.py"))

    checkpoint = trained("trainer.max_steps=2") / "run/checkpoints/best.ckpt"
    words = (f"checkpoint={checkpoint}", "n_tokens=100", "hydra.run.dir=out")
    done = success("share", *words, directory=tmp_path)
    assert done.out.splitlines()[0].endswith("of tokens have a loss above 3.0 nats")
    assert (tmp_path / "out/share.json").is_file()

    assert "share of tokens whose loss exceeds a threshold" in run_txl("--help").out
    assert "n_tokens: 1000" in run_txl("share", "--help").out
    without = run_txl("share", "hydra.run.dir=none", directory=tmp_path)
    assert "`ShareOptions` has missing mandatory value: checkpoint" in without.err


def reading_paths() -> list[list[str]]:
    """Return the files of each reading path, relative to the root of the project."""
    rows = re.findall(r"^\| [^|]+ \| (\[.+ → .+) \|$", PAGE.read_text(), re.M)
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
            module = file.removesuffix(".py").replace("/", ".")
            package, _, name = module.rpartition(".")
            imported = rf"\b{module}\b|from {package} import .*\b{name}\b|{file}"
            assert re.search(imported, text), file
            text += (ROOT / file).read_text()
