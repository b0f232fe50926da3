"""Multiruns as a user starts them: their training, files and messages."""

import json
import os
import re
import signal
import time
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGKILL, SIGTERM
from unittest.mock import Mock

import psutil
import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import MissingConfigException
from omegaconf import OmegaConf

from hydra_plugins.txl_process_launcher import ProcessLauncher
from tests import wandb_files
from tests.forked import ForkedCommand, start_module
from tests.training.small_run import TEXT, TINY
from txl_lightning.command_line import CALL, Call, current
from txl_lightning.command_line.hydra_app import register
from txl_lightning.command_line.messages import one_line
from txl_lightning.command_line.multirun import multirun_name, report_failed_jobs
from txl_lightning.config.schemas import CONF, Config

FILES = ("multirun.json", "multirun.md", "multirun.yaml")


def start(directory: Path, *arguments: str) -> ForkedCommand:
    """Start `txl train -m` on a small text; its folder is `sweep`."""
    (directory / "text.txt").write_text(TEXT)
    paths = ("data.path=text.txt", "data.cache_dir=cache", "hydra.sweep.dir=sweep")
    return start_module(directory, "txl_lightning.cli", "train", "-m", *TINY, *paths, *arguments)


@pytest.mark.slow
def test_a_failed_job_does_not_stop_the_others_and_the_exit_status_counts_it(tmp_path: Path) -> None:
    done = start(tmp_path, "memory.mem_len=8,-1,0", "logger=wandb", "hydra.launcher.max_parallel=2").finish()
    assert done.returncode == 1
    job, summary = done.stderr.splitlines()
    of_job_1 = r"txl train: job 1 \(.*memory\.mem_len=-1.*\): memory\.mem_len=-1: must be an integer >= 0 "
    assert re.fullmatch(of_job_1 + r"\(sweep/1/error\.txt\)", job)
    assert summary == "txl train: 1 of 3 jobs failed"
    assert sorted(path.name for path in (tmp_path / "sweep").iterdir()) == [".lock", "0", "1", "2", *FILES]
    assert not (tmp_path / "sweep/1/metrics.json").exists()
    for i, mem_len in ((0, 8), (2, 0)):  # each is one run of the multirun's group
        assert json.loads((tmp_path / f"sweep/{i}/metrics.json").read_text())["evaluation"]["mem_len"] == mem_len
        assert OmegaConf.load(tmp_path / f"sweep/{i}/config.yaml").logger.group == "sweep"
        (run,) = wandb_files.run_files(tmp_path / f"sweep/{i}")
        (record,) = [text for text in map(json.dumps, wandb_files.records(run)) if '"run_group"' in text]
        assert '"sweep"' in record


def jobs_of(process: ForkedCommand) -> list[psutil.Process]:
    """Return the processes of the running jobs, which have sessions of their own."""
    below = psutil.Process(process.pid).children(recursive=True)
    return [child for child in below if os.getsid(child.pid) == child.pid]


@pytest.mark.slow
def test_optuna_minimises_the_validation_loss_and_continues_with_a_seed(tmp_path: Path) -> None:
    search = ["hydra/sweeper=optuna", "hydra.sweeper.sampler.seed=1", "optimizer.lr=tag(log, interval(1e-4, 1e-2))"]
    ended = []
    for n_trials in (2, 4):
        more = (f"hydra.sweeper.n_trials={n_trials}", "trainer.devices=2", "hydra.launcher.max_parallel=2")
        start(tmp_path, *search, *more).succeed()
        ended.append({path: path.stat().st_mtime_ns for path in tmp_path.glob("sweep/*/metrics.json")})
    assert len(ended[0]) == 2
    assert ended[0].items() <= ended[1].items()  # no trial ran twice
    losses = [json.loads((tmp_path / f"sweep/{i}/metrics.json").read_text())["val/nll"] for i in range(4)]
    rates = [OmegaConf.load(tmp_path / f"sweep/{i}/config.yaml").optimizer.lr for i in range(4)]
    best = OmegaConf.load(tmp_path / "sweep/optimization_results.yaml")
    assert (best.best_value, best.best_params["optimizer.lr"]) == min(zip(losses, rates, strict=True))


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(SIGKILL, marks=pytest.mark.slow),
        *(pytest.param(number, marks=pytest.mark.full) for number in (SIGTERM, SIGINT, SIGHUP)),
    ],
)
def test_a_signal_ends_all_jobs_and_is_the_exit_status(tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path, "seed=1,2,3", "trainer.max_steps=1000000", "hydra.launcher.max_parallel=2")
    curves = [tmp_path / f"sweep/{i}/validation.jsonl" for i in (0, 1)]
    while process.poll() is None and not all(curve.exists() for curve in curves):
        time.sleep(0.1)
    jobs = jobs_of(process)
    assert len(jobs) == 2
    process.send_signal(number)
    done = process.finish(timeout=30)
    if number == SIGKILL:
        assert psutil.wait_procs(jobs, timeout=20)[1] == []
        return
    assert done.stderr == "txl train: interrupted; to continue, repeat the command with hydra.sweep.dir=sweep\n"
    assert done.returncode == 128 + number
    assert not [job for job in jobs if job.is_running()]
    assert all((tmp_path / f"sweep/{i}/checkpoints/last.ckpt").exists() for i in (0, 1))
    assert not (tmp_path / "sweep/2").exists()


def test_jobs_side_by_side_share_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Mock()
    monkeypatch.setattr("txl_lightning.command_line.multirun.JobProcess", made)
    monkeypatch.setattr("txl_lightning.command_line.multirun.pickle", Mock())
    monkeypatch.setenv("OMP_NUM_THREADS", "6")
    job = Mock(directory=tmp_path / "0", overrides=("seed=1",), number=0)
    job.config.hydra.job.env_set = {"A": "1"}
    for at_once, threads, expected in ((1, None, {}), (2, None, "3"), (2, 5, "5")):
        launcher = ProcessLauncher(at_once, threads, 1)
        launcher.task = Mock()
        launcher._start(job, 0)
        counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), expected) if expected else {}
        assert made.call_args.kwargs["variables"] == {**counts, "A": "1"}
        assert made.call_args.kwargs["log"] == (tmp_path / "0/log.txt" if at_once > 1 else None)


def test_a_call_keeps_its_multirun_for_itself() -> None:
    call = Call()
    token = CALL.set(call)
    assert current() is call
    CALL.reset(token)
    assert current() is not current()


def test_slurm_gives_every_device_a_task() -> None:
    register()
    words = ["hydra/launcher=slurm", "trainer.devices=4", "hydra.launcher.partition=gpu", "hydra.job.name=cli"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", overrides=[*words, "hydra.sweep.dir=sweep"], return_hydra_config=True)
    launcher = config.hydra.launcher
    assert (launcher.tasks_per_node, launcher.gpus_per_node, launcher.partition) == (4, 4, "gpu")
    assert launcher.submitit_folder == "sweep/.submitit/%j"


def test_a_multirun_is_named_after_its_folder() -> None:
    assert multirun_name("/scratch/2026-11-20/12-30-00") == "scratch-2026-11-20-12-30-00"
    assert multirun_name("/" + "x" * 200) == "x" * 128


def test_more_failures_than_an_exit_status_can_say(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = [*(f"job {i} (seed={i}): was killed by SIGKILL" for i in range(300)), None]
    assert report_failed_jobs("train", outcomes) == 100
    assert capsys.readouterr().err.splitlines()[-1] == "txl train: 300 of 301 jobs failed"


def test_lines_of_errors_of_others() -> None:
    """A defect has its type, a choice of an extra that is not installed the extra."""
    assert one_line(ZeroDivisionError("division by zero\nsomewhere"), Config) == "ZeroDivisionError: division by zero"
    assert one_line(RuntimeError(), Config) == "RuntimeError: RuntimeError"
    error = MissingConfigException("Could not find it", "hydra/sweeper/optuna", ["basic"])
    assert one_line(error, Config) == "hydra/sweeper=optuna: needs pip install 'txl_lightning[sweep]'"
