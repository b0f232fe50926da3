"""The measurement of docs/house.md, as it stands there."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks
from tests.in_process import run_txl
from tests.own_guests import no_guests  # noqa: F401 - a fixture
from tests.training.small_run import trained


@pytest.mark.usefixtures("no_guests")
def test_the_measurement_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "share.py").write_text("\n".join(blocks(ROOT / "docs/house.md", "python")[1:]))
    monkeypatch.setenv("TXL_GUESTS", str(tmp_path / "share.py"))
    checkpoint = trained("trainer.max_steps=2") / "run/checkpoints/best.ckpt"
    words = ("share", f"checkpoint={checkpoint}", "n_tokens=100", "hydra.run.dir=out")
    done = run_txl(*words, directory=tmp_path)
    assert done.out.splitlines()[0].endswith("of tokens have a loss above 3.0 nats"), done.err
    assert (tmp_path / "out/share.json").is_file()
    assert "share of tokens whose loss exceeds a threshold" in run_txl("--help", directory=tmp_path).out
    assert "n_tokens: 1000" in run_txl("share", "--help", directory=tmp_path).out
    without = run_txl("share", "hydra.run.dir=none", directory=tmp_path)
    assert without.err == "txl share: checkpoint: must be given (checkpoint=…)\n"


def test_each_file_of_a_path_is_named_by_one_before_it() -> None:
    """The lengths are the aims of the design: files that a reader opens, in their order."""
    rows = re.findall(r"^\| ([^|]+) \| (\[.+ → .+) \|$", (ROOT / "docs/house.md").read_text(), re.M)
    paths = [[name.removeprefix("../") for name in re.findall(r"\]\(([^)]+)\)", files)] for _, files in rows]
    assert [len(path) <= most for path, most in zip(paths, (9, 3, 5, 12, 6, 6, 2), strict=True)] == [True] * len(paths)
    for path in paths:
        read = ""
        for file in path:
            module = file.removesuffix(".py").replace("/", ".")
            package, _, name = module.rpartition(".")
            assert not read or re.search(rf"\b{module}\b|from {package} import .*\b{name}\b|{file}", read), file
            read += (ROOT / file).read_text()
