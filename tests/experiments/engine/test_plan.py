"""Plan of a reproduction and its progress: the time left, the status line, the stopwatch."""

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from experiments.engine import plan as module
from experiments.engine.jobs import Job
from experiments.engine.plan import Plan, Progress, Stopwatch, clock
from experiments.engine.profiles import PROFILES
from experiments.engine.runner import Runner
from experiments.engine.setup import Setup
from tests.experiments.engine.test_runner import JOBS, runner
from txl_lightning.jobs.processes import Jobs


def state_of(waiting: list[Job], running: list[Job], done: set[str] | None = None) -> Jobs[Job]:
    """Return a state in which jobs have just started."""
    state = Jobs(waiting, Mock(), Mock(), done=done or set())
    started: Any = SimpleNamespace(started=time.monotonic())
    state.running = [(job, started, slot) for slot, job in enumerate(running)]
    return state


def test_the_status_line_shows_the_progress_file_not_the_log(tmp_path: Path) -> None:
    job, other = JOBS[1], JOBS[2]
    watched = runner(tmp_path, JOBS)
    progress = Progress(JOBS, lambda job: 60.0, slots=2)
    watched.state = state_of(waiting=[JOBS[0], JOBS[4]], running=[job, other], done={"c"})
    make_folder(tmp_path / "a")
    (tmp_path / "a" / "log.txt").write_text(" 99%|#### | 1499/1500 [00:20<00:30, 30.1step/s, nll 1.000, bpc 1.443]\n")
    assert progress.status(watched) == "1 of 5 jobs done, about 2 min left · a · b"
    state = {"steps": 600, "max_steps": 1500, "unit": "bpc", "loss": 2.5971, "seconds": 20.0}
    (tmp_path / "a" / "progress.json").write_text(json.dumps(state))
    assert progress.status(watched).endswith(" · a 600/1500 bpc 2.597 · b")
    (tmp_path / "a" / "progress.json").write_text(json.dumps({**state, "steps": 0, "loss": None}))
    assert progress.status(watched).endswith(" · a 0/1500 · b")


def test_the_time_left_follows_the_pace_of_the_trainings_so_far(tmp_path: Path) -> None:
    jobs = [Job(name, "train", (), "tables") for name in "abcd"]
    watched = runner(tmp_path, jobs)
    progress = Progress(jobs, lambda job: 100.0, slots=1)
    watched.state = state_of(waiting=[jobs[2], jobs[3]], running=[jobs[1]])
    make_folder(tmp_path / "b")
    state = {"steps": 50, "max_steps": 1000, "unit": "bpc", "loss": None, "seconds": 60.0}
    path = tmp_path / "b" / "progress.json"
    path.write_text(json.dumps(state))
    assert progress.pace(watched) == 1  # a training that has just begun shows nothing
    path.write_text(json.dumps({**state, "steps": 200}))
    assert progress.pace(watched) == 3  # 60 seconds for a fifth of 100
    assert progress.seconds_left(watched) == pytest.approx(3 * 300, abs=1)
    watched.state.done = {"a"}
    (make_folder(tmp_path / "a") / "job.json").write_text(json.dumps({"seconds": 100.0}))
    assert progress.pace(watched) == pytest.approx(160 / 120)


def make_folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_a_line_is_printed_for_each_job_that_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = JOBS[1:4]
    watched = runner(tmp_path, jobs)
    progress = Progress(jobs, lambda job: 60.0, slots=2)
    watched.state = state_of(waiting=[], running=jobs[:2], done={"c"})  # by an earlier call
    progress(watched)
    capsys.readouterr()
    (make_folder(tmp_path / "a") / "job.json").write_text(json.dumps({"seconds": 12.4}))
    watched.state.done, watched.state.failed = {"a", "c"}, {"b": "b failed"}
    for _ in range(2):
        progress(watched)
    assert capsys.readouterr().err.splitlines() == ["a: done in 12 s", "b failed"]


def test_durations_have_fitting_units() -> None:
    assert [clock(s) for s in (45, 600, 7200, 72 * 3600)] == ["45 s", "10 min", "2.0 h", "3 days"]


def test_a_plan_shows_every_job_and_the_sum_of_their_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two jobs at once need half the time, a measurement that runs alone all of its own."""
    monkeypatch.setattr(module, "tokens_read", lambda job: 1_000_000)
    monkeypatch.setattr(module, "token_cost", lambda job, profile: 1.0)
    monkeypatch.setattr(module, "cores", lambda: 2)
    setup = Setup(PROFILES["smoke"], (), tmp_path, sections=("table_6",))
    jobs = [Job("time", "speed", (), "x", alone=True), *(Job(n, "train", (), "x", sections=("s",)) for n in "abc")]
    planned = Plan(setup, jobs, Runner(tmp_path / "runs", {j.name: "k" for j in jobs}, [{}], lambda job: []), 2)
    folder = make_folder(tmp_path / "runs") / "a"
    (make_folder(folder) / "job.json").write_text(json.dumps({"key": "k", "done": True}))
    (folder / "metrics.json").write_text(json.dumps({"tokens": 50_000, "seconds": 2.0}))  # 25,000 tokens/s
    lines = planned.table().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:6]]
    assert rows == [
        ["time", "speed", "", "", "6 s"],
        ["a", "train", "1,000,000 tokens", "s", "finished"],
        ["b", "train", "1,000,000 tokens", "s", "44 s"],  # 4 and 1,000,000 / 25,000
        ["c", "train", "1,000,000 tokens", "s", "44 s"],
    ]
    assert lines[7] == "profile smoke: 3 trainings, 1 measurements, 2 at once"
    assert lines[8] == "left: about 50 s, at 25,000 tokens/s of a training (as the finished trainings here had)"
    assert planned.summary().startswith("profile smoke: 4 jobs, 1 of them finished before, 2 at once, into ")


def test_the_stopwatch_continues_its_sum(tmp_path: Path) -> None:
    path = tmp_path / "clock.json"
    path.write_text(json.dumps({"began": "2026-01-02T03:04:05+00:00", "seconds": 100.0}))
    with Stopwatch(path, restart=False) as watch:
        time.sleep(0.3)
        assert 100.3 <= watch.seconds < 110
    saved = json.loads(path.read_text())
    assert saved["began"] == "2026-01-02T03:04:05+00:00"
    assert 100.3 <= saved["seconds"] < 110
    assert Stopwatch(path, restart=True).seconds < 100


@pytest.mark.parametrize("content", ["", '{"began": "2026', "[]", "{}"])
def test_a_damaged_sum_begins_again(content: str, tmp_path: Path) -> None:
    path = tmp_path / "clock.json"
    path.write_text(content)
    with Stopwatch(path, restart=False) as watch:
        assert watch.seconds < 100
    assert set(json.loads(path.read_text())) == {"began", "seconds"}
