"""The launcher by itself, with an application that starts fast."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
from omegaconf import OmegaConf

from hydra_plugins.txl_process_launcher.process_launcher import ProcessLauncher
from txl_lightning.errors import OptionError

ROOT = Path(__file__).parents[2]


def app(directory: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """The application's multirun in `directory`, its folder `sweep` unless told otherwise."""
    kept = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "HYDRA_FULL_ERROR")}
    options: dict[str, Any] = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    options |= {"cwd": directory, "env": {**kept, "PYTHONPATH": str(ROOT), **variables}, "start_new_session": True}
    command = [sys.executable, "-m", "tests.hydra_plugins.small_app", "-m", "hydra.sweep.dir=sweep", *arguments]
    return subprocess.Popen(command, **options)


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    output, errors = process.communicate(timeout=60)
    return process.returncode, output, errors


def jobs(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(directory.glob("sweep/*/job.json"))]


def until(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def running(pids: list[int]) -> list[int]:
    zombies = [process.pid for process in psutil.process_iter(["status"]) if process.info["status"] == "zombie"]
    return [pid for pid in pids if psutil.pid_exists(pid) and pid not in zombies]


def test_every_job_has_a_group_and_a_folder_of_its_own(tmp_path: Path) -> None:
    status, output, errors = finish(app(tmp_path, "value=1,2,3", "hydra.sweep.dir=sweeps/${now:%f}"))
    assert (status, errors) == (0, "")
    (sweep,) = (tmp_path / "sweeps").iterdir()
    assert sorted(path.name for path in sweep.iterdir()) == [".lock", "0", "1", "2", "multirun.yaml"]
    records = [json.loads((sweep / f"{i}/job.json").read_text()) for i in range(3)]
    assert len({record["group"] for record in records}) == 3
    assert all(record["pids"] == [record["group"]] for record in records)
    for i in range(3):
        hydra = OmegaConf.load(sweep / f"{i}/.hydra/hydra.yaml").hydra
        assert (hydra.job.num, hydra.job.override_dirname) == (i, f"value={i + 1}")
        assert hydra.runtime.output_dir == str(sweep / str(i))
    lines = output.splitlines()
    assert [line.split("] ")[-1] for line in lines if "is here" in line] == [f"job {i} is here" for i in range(3)]
    assert lines[-1].endswith("s: 9.0")


def test_however_a_job_fails_the_others_run_and_the_sweeper_knows(tmp_path: Path) -> None:
    ends = "raise,raise what cannot be pickled,be killed,exit,return"
    status, _, errors = finish(app(tmp_path, f"do={ends}", "hydra.launcher.max_parallel=2"))
    assert status == 1
    assert len(jobs(tmp_path)) == 5
    told = json.loads((tmp_path / "outcomes.json").read_text())
    assert [line for line in told if line is None] == [None]
    assert sorted(filter(None, told)) == [
        "job 0 (do=raise): ValueError: as told (sweep/0/error.txt)",
        "job 1 (do=raise\\ what\\ cannot\\ be\\ pickled): LocalError: as told (sweep/1/error.txt)",
        "job 2 (do=be\\ killed): was killed by SIGKILL: see sweep/2/log.txt",
        "job 3 (do=exit): ended with exit status 7: see sweep/3/log.txt",
    ]
    assert "JobError: ValueError: as told" in errors  # the first failure
    assert "in job" in (tmp_path / "sweep/0/error.txt").read_text()


def test_as_many_side_by_side_as_asked_with_the_cores_divided(tmp_path: Path) -> None:
    arguments = ("value=1,2,3", "seconds=1.5", "hydra.launcher.max_parallel=2")
    status, output, _ = finish(app(tmp_path, *arguments, OMP_NUM_THREADS="6"))
    assert status == 0
    records = jobs(tmp_path)
    assert [record["threads"] for record in records] == ["3"] * 3
    most = max(sum(other["start"] <= record["start"] < other["end"] for other in records) for record in records)
    assert most == 2
    assert "is here" not in output
    assert [(tmp_path / f"sweep/{i}/log.txt").read_text() for i in range(3)] == [f"job {i} is here\n" for i in range(3)]


@pytest.mark.parametrize(("options", "named"), [((0, None, 1), "max_parallel=0"), ((1, 0, 1), "threads=0")])
def test_options_that_mean_nothing_are_refused(options: tuple[Any, ...], named: str) -> None:
    with pytest.raises(OptionError, match=f"hydra.launcher.{named}: must be an integer >= 1"):
        ProcessLauncher(*options).setup(hydra_context=Mock(), task_function=Mock(), config=Mock())


@pytest.mark.parametrize(
    "words", [["seed=range(0,100000000)"], ["a=range(200)", "b=choice(1,2,3)", "c=range(1,3,0.1)"]]
)
def test_a_grid_of_too_many_jobs_is_refused_before_it_is_listed(words: list[str], tmp_path: Path) -> None:
    sweeper = {"_target_": "hydra._internal.BasicSweeper"}
    config = {"sweeper": sweeper, "overrides": {"task": words}, "sweep": {"dir": str(tmp_path / "sweep")}}
    setup = {"hydra_context": Mock(), "task_function": Mock(), "config": OmegaConf.create({"hydra": config})}
    with pytest.raises(OptionError, match="must be a shorter sweep: at most 10,000 jobs are possible"):
        ProcessLauncher(1, None, 1).setup(**setup)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, *(pytest.param(n, marks=pytest.mark.slow) for n in (signal.SIGINT, signal.SIGHUP))]
)
def test_a_multirun_that_is_ended_lets_its_jobs_save_and_leaves_none(tmp_path: Path, number: signal.Signals) -> None:
    process = app(tmp_path, "do=wait", "value=1,2,3", "hydra.launcher.max_parallel=2")
    assert until(lambda: len(jobs(tmp_path)) == 2, 20)
    pids = [pid for record in jobs(tmp_path) for pid in record["pids"]]
    assert len(running(pids)) == 6
    os.killpg(process.pid, number)  # as a terminal does: the multirun's group, which its jobs are not in
    _, _, errors = finish(process)
    assert "KeyboardInterrupt" in errors
    assert until(lambda: not running(pids), 1)
    assert all((tmp_path / f"sweep/{i}/saved.txt").exists() for i in (0, 1))
    assert not (tmp_path / "sweep/2").exists()


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    process = app(tmp_path, "do=ignore", "hydra.launcher.grace_seconds=600")
    assert until(lambda: len(jobs(tmp_path)) == 1, 20)
    (record,) = jobs(tmp_path)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
    finish(process)
    assert until(lambda: not running(record["pids"]), 1)


def test_no_job_outlives_a_multirun_that_was_killed(tmp_path: Path) -> None:
    process = app(tmp_path, "do=wait", "value=1,2", "hydra.launcher.max_parallel=2")
    assert until(lambda: len(jobs(tmp_path)) == 2, 20)
    inside = [pid for record in jobs(tmp_path) for pid in record["pids"][:2]]
    outside = [record["pids"][2] for record in jobs(tmp_path)]
    process.kill()
    process.communicate(timeout=20)
    try:
        assert until(lambda: not running(inside), 5)
    finally:
        for pid in outside:  # no process of the job's group, and none that watches its parent
            os.kill(pid, signal.SIGKILL)
