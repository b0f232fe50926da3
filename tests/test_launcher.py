"""Multiruns as a user starts them: jobs in processes of their own, failures, signals, a repeated command."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGKILL, SIGTERM

import psutil
import pytest
from omegaconf import OmegaConf

from tests import wandb_files
from tests.forked import ForkedCommand, start_module
from tests.in_process import run_txl, success
from tests.small_multirun import results, words, written
from txl_lightning.application import composition, register
from txl_lightning.files import locked
from txl_lightning.launcher import run_in_process
from txl_lightning.registry import COMMANDS


def start(directory: Path, *arguments: str, **variables: str) -> ForkedCommand:
    return start_module(directory, "txl_lightning.cli", *words(directory, *arguments), **variables)


@pytest.mark.slow
def test_a_failed_job_does_not_stop_the_others_and_is_reported(tmp_path: Path) -> None:
    """Each good job is a run of its own in one W&B group."""
    arguments = ("memory.mem_len=8,-1,0", "logger=wandb", "hydra.launcher.max_parallel=2")
    variables = {"WANDB_RUN_ID": "one", "WANDB_MODE": "offline"}
    done = start(tmp_path, *arguments, "hydra.sweep.dir=sweep", **variables).finish()
    assert done.returncode == 1
    line, summary = done.stderr.splitlines()[-2:]
    assert line.startswith("txl train: job 1 (")
    assert line.endswith("memory.mem_len=-1): memory.mem_len=-1: must be an integer >= 0")
    assert summary == "txl train: failed jobs: 1"
    assert "WANDB_RUN_ID=one is one id" in done.stderr
    assert sorted(written(tmp_path)) == ["0", "2"]
    runs = {"run-one.wandb"}
    for number, mem_len in (("0", 8), ("2", 0)):
        folder = tmp_path / "sweep" / number
        metrics = json.loads((folder / "metrics.json").read_text())
        assert metrics["evaluation"]["mem_len"] == mem_len
        (run,) = wandb_files.run_files(folder)
        records = json.dumps(wandb_files.records(run))
        assert '"run_group": "sweep"' in records
        runs.add(run.name)
    assert len(runs) == 3


def jobs_of(process: ForkedCommand) -> list[psutil.Process]:
    """Return the processes of the running jobs, which have sessions of their own."""
    below = psutil.Process(process.pid).children(recursive=True)
    return [child for child in below if os.getsid(child.pid) == child.pid]


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(SIGKILL, marks=pytest.mark.slow),
        pytest.param(SIGTERM, marks=pytest.mark.full),
        pytest.param(SIGINT, marks=pytest.mark.full),
        pytest.param(SIGHUP, marks=pytest.mark.full),
    ],
)
def test_a_signal_ends_all_jobs_and_is_the_exit_status(
    tmp_path: Path, number: signal.Signals
) -> None:
    """The jobs save, also if the multirun is killed."""
    endless = ("seed=1,2,3", "trainer.max_steps=1000000", "hydra.launcher.max_parallel=2")
    process = start(tmp_path, *endless)
    first = tmp_path / "sweep/0"
    second = tmp_path / "sweep/1"
    while not (first / "validation.jsonl").exists() or not (second / "validation.jsonl").exists():
        assert process.poll() is None
        time.sleep(0.1)
    jobs = jobs_of(process)
    assert len(jobs) == 2
    process.send_signal(number)
    done = process.finish(timeout=60)
    assert psutil.wait_procs(jobs, timeout=30)[1] == []
    assert (first / "checkpoints/last.ckpt").exists()
    assert (second / "checkpoints/last.ckpt").exists()
    assert not (tmp_path / "sweep/2/config.yaml").exists()
    if number != SIGKILL:
        again = f"repeat the command with hydra.sweep.dir={tmp_path}/sweep"
        assert done.stderr.splitlines()[-1] == f"txl train: interrupted; to continue, {again}"
        assert done.returncode == 128 + number


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three jobs that nothing interrupted."""
    directory = tmp_path_factory.mktemp("whole")
    done = success(*words(directory, "hydra/launcher=basic", "seed=1,2,3"), directory=directory)
    path = directory / "sweep/multirun.md"
    assert done.out.endswith(f"{path.read_text()}{path}\n")
    return directory


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher",
    ["basic", "process", pytest.param("submitit_local", marks=pytest.mark.full)],
)
def test_finished_jobs_are_skipped_and_stopped_ones_resume(
    tmp_path: Path, whole: Path, launcher: str
) -> None:
    """Job 0 has finished, job 1 was killed after its last checkpoint, job 2 before its first."""
    success(*words(tmp_path, "hydra/launcher=basic", "seed=1,2"), directory=tmp_path)
    before = written(tmp_path)
    (tmp_path / "sweep/1/metrics.json").unlink()
    success(*words(tmp_path, f"hydra/launcher={launcher}", "seed=1,2,3"), directory=tmp_path)
    assert written(tmp_path)["0"] == before["0"]
    assert results(tmp_path) == results(whole)
    assert (tmp_path / "sweep/multirun.md").read_text() == (whole / "sweep/multirun.md").read_text()


@pytest.mark.slow
def test_a_folder_with_other_options_is_refused_and_equal_jobs_run_once(tmp_path: Path) -> None:
    success(*words(tmp_path, "hydra/launcher=basic", "seed=1,2"), directory=tmp_path)
    before = written(tmp_path)
    refused = run_txl(*words(tmp_path, "seed=3,1"))
    assert refused.status == 2
    assert f"{tmp_path}/sweep/0 holds a job with other options: choose another" in refused.err
    assert run_txl(*words(tmp_path, "seed=2,1,3,3,-1")).status == 1
    after = written(tmp_path)
    assert after.keys() == {"0", "1", "2"}
    assert after.items() >= before.items()
    jobs = {job["job"]: job for job in results(tmp_path)["jobs"]}
    assert {number: job["seed"] for number, job in jobs.items()} == {
        "0": "1",
        "1": "2",
        "2": "3",
        "4": "-1",
    }
    assert jobs["2"]["state"] == "finished"
    assert jobs["4"]["state"] == "failed"
    assert jobs["4"]["error"] == "seed=-1: must be an integer >= 0 and below 2^32"


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["basic", "process"])
def test_jobs_of_another_text_are_never_in_one_table(tmp_path: Path, launcher: str) -> None:
    given = words(tmp_path, "seed=1")
    success(*given, "hydra/launcher=basic")
    text = tmp_path / "text.txt"
    text.write_text(text.read_text().replace("line 0", "LINE 0"))
    refused = f"{tmp_path}/sweep/0 used another text than data=file has now: choose another hydra.sweep.dir, or delete"
    for more in ("seed=1", "seed=2,3"):
        done = run_txl(*given[:-1], more, f"hydra/launcher={launcher}")
        assert done.status > 0
        assert refused in done.err
    assert list(written(tmp_path)) == ["0"]


@pytest.mark.slow
def test_a_job_knows_its_number_and_its_folder_may_be_nested(tmp_path: Path) -> None:
    arguments = (
        "seed=${hydra:job.num}",
        "memory=on,off",
        "hydra.sweep.subdir='a ${hydra:job.num}/b'",
    )
    success(*words(tmp_path, *arguments), directory=tmp_path)
    found = {job["job"]: job["seed"] for job in results(tmp_path)["jobs"]}
    assert found == {"a 0/b": "0", "a 1/b": "1"}


def test_a_further_rank_of_a_slurm_job_waits_for_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLURM starts the task once for each rank; the first one holds the lock and writes the record."""
    register()
    config = composition("train", ["data=file", "data.path=text.txt"])
    settings = {
        "runtime": {"output_dir": f"{tmp_path}/0", "cwd": str(tmp_path)},
        "sweep": {"dir": str(tmp_path)},
        "overrides": {"task": []},
        "sweeper": {"_target_": "BasicSweeper"},
    }
    monkeypatch.setenv("SLURM_PROCID", "1")
    folders: list[Path] = []
    with locked(tmp_path / "0"):
        run_in_process(
            COMMANDS["train"],
            config,
            OmegaConf.create(settings),
            lambda config, folder: folders.append(folder),
        )
    assert folders == [tmp_path / "0"]
