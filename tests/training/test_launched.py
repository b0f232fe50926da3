"""Runs of several processes as users start them: by txl itself, by torchrun, by SLURM."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.docs.pages import ROOT, blocks
from tests.forked import ForkedCommand, start_module
from tests.training.small_run import TEXT, TINY, trained

TORCHRUN = ("--standalone", "--nproc-per-node", "2")


def start(
    directory: Path, *words: str, module: str = "txl_lightning.cli", **variables: str
) -> ForkedCommand:
    """Start `txl` (or another module) on a small text."""
    (directory / "text.txt").write_text(TEXT)
    options = [*TINY, "data.path=text.txt", "data.cache_dir=cache"]
    own = (option for option in options if option.split("=")[0] not in " ".join(words))
    return start_module(
        directory,
        module,
        *words,
        *own,
        **variables,
    )


def metrics_of(directory: Path) -> dict[str, Any]:
    """Return `metrics.json` of the one run directory that Hydra made."""
    (path,) = directory.glob("outputs/*/*/metrics.json")
    metrics = json.loads(path.read_text())
    return metrics


@pytest.mark.full
def test_torchrun_starts_the_ranks(tmp_path):
    words = ("-m", "txl_lightning.cli", "train", "trainer.devices=2", "model.dropout=0")
    command = start(
        tmp_path,
        *TORCHRUN,
        *words,
        module="torch.distributed.run",
    )
    assert command.succeed().stdout.count("after 12 steps") == 1
    metrics = metrics_of(tmp_path)
    alone = json.loads((trained("model.dropout=0") / "run/metrics.json").read_text())
    assert metrics["processes"] == 2
    assert metrics["val/nll"] == pytest.approx(alone["val/nll"], rel=1e-5)


OWN = """
import json, os, sys
import lightning as L, torch
from txl_lightning import LanguageModelModule
from txl_lightning.data.streams import Streams
place = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
tokens = torch.arange(6 * 41).remainder(97).numpy()
options = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
for steps, checkpoint in ((7, None), (14, "7.ckpt"), (14, None)):
    module = LanguageModelModule.load_from_checkpoint(sys.argv[1])
    trainer = L.Trainer(devices=place[1], max_steps=steps, use_distributed_sampler=False, **options)
    trainer.fit(module, *(Streams(tokens, 6, 8, 0, *place) for _ in range(2)), ckpt_path=checkpoint)
    trainer.save_checkpoint(f"{steps}.ckpt")
    with open(f"{place}", "a") as file:
        memory = float(module.training_memory.value.states.double().square().sum())
        print(json.dumps([module.metrics["val/nll"], memory]), file=file)
"""


@pytest.mark.full
def test_an_own_trainer_on_two_ranks_gives_the_numbers_of_one_and_resumes(tmp_path):
    """Its checkpoints, which Lightning writes, hold the memory of all ranks."""
    (tmp_path / "own.py").write_text(OWN)
    folder = trained("model.dropout=0", "optimizer.schedule=constant")
    program = (str(tmp_path / "own.py"), str(folder / "run/checkpoints/last.ckpt"))
    for n_processes in ("1", "2"):
        launcher = ("--standalone", "--nproc-per-node", n_processes)
        start_module(tmp_path, "torch.distributed.run", *launcher, *program).succeed()
    rows = []
    for place in ((0, 1), (0, 2), (1, 2)):
        lines = (tmp_path / f"{place}").read_text().splitlines()
        first, resumed, whole = (json.loads(line) for line in lines)
        assert first != resumed == whole
        rows.append(whole)
    alone, *ranks = rows
    assert [rank[0] for rank in ranks] == pytest.approx([alone[0]] * 2, rel=1e-6)
    assert sum(rank[1] for rank in ranks) == pytest.approx(alone[1], rel=1e-5)


@pytest.mark.slow
def test_two_processes_of_the_page_train_one_model(tmp_path):
    shutil.copytree(
        trained() / "run",
        tmp_path / "runs/first",
    )
    (code,) = (code for code in blocks(ROOT / "docs/training.md", "python") if "devices=2" in code)
    # Each rank has a file: they share the output, and may write into each other's lines.
    shown = """
    with open(f"rank {trainer.global_rank}", "w") as file:
        print(trainer.world_size, module.tokens, module.metrics["val/nll"], file=file)
"""
    (tmp_path / "two.py").write_text(code + shown)

    done = subprocess.run(
        [sys.executable, "two.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr
    said = (tmp_path / "rank 0").read_text()
    assert (tmp_path / "rank 1").read_text() == said
    assert said.startswith(f"2 {4 * 999} ")


@pytest.mark.full
def test_slurm_tasks_are_the_ranks(tmp_path):
    job = {
        "JOB_ID": str(os.getpid()),
        "JOB_NAME": "txl",
        "NODELIST": "127.0.0.1",
        "NODEID": "0",
    }
    job |= {"NTASKS": "2", "NTASKS_PER_NODE": "2", "STEP_NUM_TASKS": "2"}
    tasks = []
    for i in "01":
        job |= {"PROCID": i, "LOCALID": i}
        variables = {f"SLURM_{name}": value for name, value in job.items()}
        tasks.append(start(tmp_path, "train", "trainer.devices=2", **variables))
    first, second = (task.finish() for task in tasks)
    assert (first.returncode, second.returncode) == (0, 0), first
    assert first.stdout.count("after 12 steps") == 1
    assert "after 12 steps" not in second.stdout
    assert metrics_of(tmp_path)["processes"] == 2


@pytest.mark.full
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["trainer.devices=4", "evaluation.batch_size=4"],
            "trainer.devices=4: with trainer.num_nodes=1 the product must be 2",
        ),
        (["trainer.devices=2", "seed=RANK"], "the ranks were started with different options"),
    ],
)
def test_another_number_of_processes_or_other_options_are_refused(tmp_path, options, said):
    """Two ranks are started by hand, as torchrun does."""
    port = str(20000 + os.getpid() % 10000)
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    started = []
    for rank in "01":
        place = {"TORCHELASTIC_RUN_ID": "by hand", "RANK": rank, "LOCAL_RANK": rank}
        words = [word.replace("RANK", rank) for word in options]
        started.append(
            start(
                tmp_path,
                "train",
                *words,
                **common,
                **place,
            )
        )
    for process in started:
        end = process.finish()
        assert end.returncode == 2
        assert said in end.stderr


def listening_addresses(process: psutil.Process) -> set[str]:
    """Return the addresses on which a process or a child listens; short-lived children may end meanwhile."""
    addresses = set()
    for member in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            for connection in member.net_connections("inet"):
                if connection.status == psutil.CONN_LISTEN:
                    addresses.add(connection.laddr.ip)
    return addresses


@pytest.mark.slow
def test_a_running_training_cannot_be_reached_from_elsewhere(tmp_path):
    words = ("train", "trainer.devices=2", "trainer.max_steps=1000000", "hydra.run.dir=run")
    process = start(tmp_path, *words)
    while process.poll() is None and not (tmp_path / "run/validation.jsonl").exists():
        time.sleep(0.1)
    listening = listening_addresses(psutil.Process(process.pid))
    process.send_signal(signal.SIGHUP)
    assert process.finish().returncode == 128 + signal.SIGHUP
    assert listening == {"127.0.0.1"}  # of gloo
