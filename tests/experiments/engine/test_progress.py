"""Progress lines of a reproduction, and the source files that a job depends on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from experiments.engine.code import PRESENTATION, code_of, statements
from experiments.engine.progress import Progress
from tests.docs.pages import ROOT
from tests.test_jobs import Call
from txl_lightning.jobs import Jobs, Running


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package whose command uses a module, a folder and a table."""
    sources = {
        "command": "import wandb\nfrom txl_sample.used import f\nfrom txl_sample import kinds, reporting\n",
        "used": "def f(x):\n    import txl_sample.late\n    return x + 1\n",
        **dict.fromkeys(("__init__", "late", "kinds/one", "reporting", "other"), "A = 1\n"),
        "kinds/__init__": "from txl_sample.kinds import one\n",
    }
    (tmp_path / "wandb").mkdir()  # offline runs, not the library
    (tmp_path / "txl_sample/kinds").mkdir(parents=True)
    for name, source in sources.items():
        (tmp_path / f"txl_sample/{name}.py").write_text(source)
    monkeypatch.setattr("experiments.engine.code.SOURCES", tmp_path)
    monkeypatch.setattr("experiments.engine.code.PRESENTATION", ("txl_sample/reporting.py",))
    return tmp_path / "txl_sample"


@pytest.mark.parametrize(
    ("file", "more", "changes"),
    [
        ("command.py", "X = 1\n", True),
        ("used.py", "X = 1\n", True),
        ("used.py", "# why\n\n", False),
        ("late.py", "X = 1\n", True),  # imported in a function
        ("kinds/one.py", "X = 1\n", True),
        ("reporting.py", "X = 1\n", False),
        ("other.py", "X = 1\n", False),
    ],
)
def test_the_code_of_a_command_is_what_it_imports(package: Path, file: str, more: str, changes: bool) -> None:
    def code() -> str:
        code_of.cache_clear()
        statements.cache_clear()
        return code_of("txl_sample.command")

    before = code()
    with (package / file).open("a") as added:
        added.write(more)
    assert (code() != before) == changes


def test_every_presentation_path_of_the_package_exists() -> None:
    assert PRESENTATION
    for name in PRESENTATION:
        assert (ROOT / name).exists(), name


def started(progress: Progress, *names: str) -> None:
    """Let jobs run, since now."""
    jobs, process = progress.jobs, Mock(started=time.monotonic())
    jobs.running = [Running(job, process, slot) for slot, job in enumerate(jobs.waiting) if job.name in names]
    jobs.waiting = [job for job in jobs.waiting if job.name not in names]


def ended(progress: Progress, name: str, seconds: float, error: str | None = None) -> None:
    jobs = progress.jobs
    jobs.running = [entry for entry in jobs.running if entry.job.name != name]
    jobs.seconds[name] = seconds
    if error is None:
        jobs.done.add(name)
    else:
        jobs.failed[name] = error


def test_a_line_for_each_job_that_ends_has_the_time_left_at_the_pace_so_far(capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[Any] = [Call("time", alone=True), *(Call(name) for name in "abcd")]
    progress = Progress(Jobs(calls, Mock(), Mock(), done={"before"}), lambda job: 60.0, slots=2)
    started(progress, "a", "b")
    progress.show()
    assert capsys.readouterr().err == "a: about 60 s left\nb: about 60 s left\n"
    # two that run and two that wait, two at once, and one alone
    assert progress.seconds_left() == pytest.approx(4 * 60 / 2 + 60, abs=1)
    ended(progress, "a", 180.0)
    assert progress.seconds_left() == pytest.approx(3 * 180 / 2 + 180, abs=1)
    progress.show()
    ended(progress, "b", 3.0, "b failed")
    progress.show()
    progress.show()
    first = "a: done in 3 min · 2 of 6 jobs done, about 7 min left\n"
    assert capsys.readouterr().err == f"{first}b failed · 2 of 6 jobs done, about 6 min left\n"


def test_a_line_for_each_step_of_a_training_has_its_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    """One has done 400 steps before; its time left is that of the steps that it still has to do."""
    steps = {"a": 0, "b": 400}
    calls: list[Any] = [Call(name) for name in "ab"]
    progress = Progress(Jobs(calls, Mock(), Mock()), lambda job: 80.0, steps=lambda job: (steps[job.name], 1000))
    started(progress, "a", "b")
    progress.show()
    steps |= {"a": 250, "b": 700}
    progress.jobs.running[0].process.started -= 20  # the process of both
    progress.show()
    progress.show()
    assert capsys.readouterr().err.splitlines() == [
        "a: step 0 of 1,000, about 80 s left",
        "b: step 400 of 1,000, about 48 s left",
        "a: step 250 of 1,000, about 60 s left",  # 20 s for 250 steps
        "b: step 700 of 1,000, about 20 s left",  # 20 s for 300 steps
    ]
    shown = progress.as_json()
    assert shown["running"] == {"a": "step 250 of 1,000, about 60 s left", "b": "step 700 of 1,000, about 20 s left"}
    assert shown["waiting"] == []
    assert shown["seconds_left"] == pytest.approx(80, abs=1)
