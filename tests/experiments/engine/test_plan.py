"""Plan of a reproduction, the progress of its trainings, the stopwatch."""

import json
import time
from pathlib import Path

import pytest

from experiments.engine import plan as module
from experiments.engine.jobs import Job
from experiments.engine.plan import Plan, Stopwatch, training_progress, training_share
from experiments.engine.profiles import PROFILES
from experiments.engine.runner import Runner
from experiments.engine.setup import Setup


def test_steps_and_loss_of_a_training_are_those_of_its_progress_file(tmp_path: Path) -> None:
    assert (training_progress(tmp_path), training_share(tmp_path)) == ("", None)
    for steps, loss, shown, share in ((0, None, "0/1500", None), (600, 2.5971, "600/1500 bpc 2.597", (0.4, 20.0))):
        state = {"steps": steps, "max_steps": 1500, "unit": "bpc", "loss": loss, "seconds": 20.0}
        (tmp_path / "progress.json").write_text(json.dumps(state))
        assert (training_progress(tmp_path), training_share(tmp_path)) == (shown, share)


def make_folder(path: Path) -> Path:
    path.mkdir()
    return path


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
