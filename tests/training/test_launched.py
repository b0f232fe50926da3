"""Runs of several processes as users start them: by txl itself, by torchrun, by SLURM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.training.recorded_run import ROOT
from tests.training.small_run import TINY

TRAIN = ["-m", "txl_lightning.cli", "train"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def start(directory: Path, *words: str, **variables: str) -> subprocess.Popen[str]:
    """Python with some words, on a small text."""
    (directory / "text.txt").write_text("".join(f"line {i}: the square of {i} is {i * i}\n" for i in range(60)))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **variables}
    options = [*TINY, "data.path=text.txt", "data.cache_dir=cache"]
    command = [sys.executable, *words, *(option for option in options if option.split("=")[0] not in " ".join(words))]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=directory, env=environment, text=True, **pipes)  # type: ignore[call-overload, no-any-return]


def finish(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """Its end and all it said."""
    output, errors = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def only_run(directory: Path) -> Path:
    """The one run directory that Hydra made, with everything in it."""
    (run,) = directory.glob("outputs/*/*")
    assert {"config.yaml", "metrics.json", "checkpoints", "validation.jsonl"} <= {path.name for path in run.iterdir()}
    return run


COUNTED = """
import atexit, os, sys
atexit.register(lambda: print(len(os.listdir("/proc/self/task")), "threads at exit", file=sys.stderr))
from txl_lightning.cli import main
main()
"""


@pytest.mark.slow
def test_torchrun_and_txl_itself_give_the_same_numbers(tmp_path: Path) -> None:
    """And no thread of the process groups is left, which could abort a process on its way out."""
    metrics = []
    (tmp_path / "counted.py").write_text(COUNTED)
    for name, words in {"torchrun": [*TORCHRUN, str(tmp_path / "counted.py"), "train"], "txl": TRAIN}.items():
        (tmp_path / name).mkdir()
        done = finish(start(tmp_path / name, *words, "trainer.devices=2", "model.dropout=0"))
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("after 12 steps") == 1
        if name == "torchrun" and sys.platform == "linux":
            assert done.stderr.count("1 threads at exit") == 2, done.stderr
        metrics.append(json.loads((only_run(tmp_path / name) / "metrics.json").read_text()))
    assert metrics[0]["val/nll"] == metrics[1]["val/nll"]
    assert metrics[0]["processes"] == 2


@pytest.mark.slow
def test_slurm_tasks_are_the_ranks(tmp_path: Path) -> None:
    variables = {"SLURM_NTASKS": "2", "SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_NAME": "txl"}
    variables |= {"SLURM_NODELIST": "127.0.0.1", "SLURM_NTASKS_PER_NODE": "2", "SLURM_NODEID": "0"}
    variables |= {"SLURM_STEP_NUM_TASKS": "2"}
    tasks = [
        start(tmp_path, *TRAIN, "trainer.devices=2", **variables, SLURM_PROCID=str(i), SLURM_LOCALID=str(i))
        for i in range(2)
    ]
    ends = [finish(task) for task in tasks]
    assert [end.returncode for end in ends] == [0, 0], ends
    assert [end.stdout.count("after 12 steps") for end in ends] == [1, 0]
    assert json.loads((only_run(tmp_path) / "metrics.json").read_text())["processes"] == 2


@pytest.mark.slow
def test_another_number_of_processes_or_other_options_are_refused(tmp_path: Path) -> None:
    done = finish(start(tmp_path, *TORCHRUN, *TRAIN, "trainer.devices=4", "evaluation.batch_size=4"))
    assert done.returncode != 0
    words = "trainer.devices=4: times trainer.num_nodes=1 must be the 2 processes that were started"
    assert f"txl train: {words}" in done.stderr
    assert f"txl train, rank 1: {words}" in done.stderr

    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20000 + os.getpid() % 10000), "WORLD_SIZE": "2"}
    variables |= {"TORCHELASTIC_RUN_ID": "by hand"}
    ranks = [
        start(tmp_path, *TRAIN, "trainer.devices=2", f"seed={i}", **variables, RANK=str(i), LOCAL_RANK=str(i))
        for i in range(2)
    ]
    ends = [finish(rank) for rank in ranks]
    assert [end.returncode for end in ends] == [2, 2]
    assert "another rank was started with different options" in ends[0].stderr
    assert "txl train, rank 1: seed=1: must be 0, as on rank 0 (this is rank 1)" in ends[1].stderr


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "number"), [(1, signal.SIGINT), (2, signal.SIGTERM)])
def test_a_stopped_command_has_the_exit_status_of_its_signal(tmp_path: Path, devices: int, number: int) -> None:
    options = ("trainer.max_steps=1000000", f"trainer.devices={devices}", "hydra.run.dir=run")
    process = start(tmp_path, *TRAIN, *options)
    while process.poll() is None and not (tmp_path / "run/validation.jsonl").exists():
        time.sleep(0.1)
    process.send_signal(number)
    done = finish(process)
    assert done.returncode == 128 + number, done.stderr
    assert "Traceback" not in done.stderr
    words = rf"txl train: stopped by {signal.Signals(number).name} after step"
    assert words in done.stderr
    assert (tmp_path / "run/checkpoints/last.ckpt").exists()
