"""Progress lines of a reproduction, and the source files that a job depends on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from experiments.engine.code import PRESENTATION, code_of
from experiments.engine.jobs import Job
from experiments.engine.progress import Progress
from tests.docs.pages import ROOT
from txl_lightning.jobs import Jobs


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package whose command uses a module, a folder and a table."""
    sources = {
        "__init__": "A = 1\n",
        "command": "import wandb\nfrom txl_sample.used import f\nfrom txl_sample import kinds, reporting\n",
        "used": "def f(x):\n    'Add one.'\n    import txl_sample.late\n    return x + 1\n",
        "late": "A = 1\n",
        "kinds/__init__": "from txl_sample.kinds import one\n",
        "kinds/one": "A = 1\n",
        "reporting": "A = 1\n",
        "other": "A = 1\n",
    }
    (tmp_path / "wandb").mkdir()  # offline runs, not the library
    (tmp_path / "txl_sample/kinds").mkdir(parents=True)
    for name, source in sources.items():
        (tmp_path / f"txl_sample/{name}.py").write_text(source)
    monkeypatch.setattr("experiments.engine.code.SOURCES", tmp_path)
    monkeypatch.setattr("experiments.engine.code.PRESENTATION", ("txl_sample/reporting.py",))
    return tmp_path / "txl_sample"


def code() -> str:
    code_of.cache_clear()
    return code_of("txl_sample.command")


@pytest.mark.parametrize(
    ("file", "more", "changes"),
    [
        ("command.py", "X = 1\n", True),
        ("command.py", "# a comment\n", False),
        ("late.py", "X = 1\n", True),  # imported in a function
        ("kinds/one.py", "X = 1\n", True),
        ("reporting.py", "X = 1\n", False),
        ("other.py", "X = 1\n", False),
    ],
)
def test_the_code_of_a_command_is_what_it_imports(
    package: Path, file: str, more: str, changes: bool
) -> None:
    before = code()
    with (package / file).open("a") as added:
        added.write(more)
    assert (code() != before) == changes


def test_every_presentation_path_of_the_package_exists() -> None:
    for name in PRESENTATION:
        assert (ROOT / name).exists(), name


def test_a_line_for_each_start_and_end_has_the_time_left_at_the_pace_so_far(
    capsys: pytest.CaptureFixture[str],
) -> None:
    a, b, c = (Job(name, "train", (), "x") for name in "abc")
    jobs: Any = Jobs(
        [a, b, c],
        Mock(),
        Mock(),
    )
    progress = Progress(
        jobs,
        dict.fromkeys("abc", 60.0),
        slots=2,
    )
    jobs.waiting = [c]
    jobs.running = [(job, Mock(started=time.monotonic())) for job in (a, b)]
    progress.show()
    progress.show()
    jobs.running.pop(0)
    jobs.seconds["a"] = 120.0
    jobs.done.add("a")
    progress.show()
    jobs.running.clear()
    jobs.seconds["b"] = 120.0
    jobs.failed["b"] = "b ended"
    progress.show()
    assert capsys.readouterr().err.splitlines() == [
        "a: started · 0 jobs done, 3 to go, about 90 s",
        "b: started · 0 jobs done, 3 to go, about 90 s",
        "a: done in 2 min · 1 jobs done, 2 to go, about 2 min",
        "b ended · 1 jobs done, 1 to go, about 60 s",
    ]
