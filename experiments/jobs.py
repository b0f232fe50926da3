"""Training and evaluation jobs, each in a process of its own, as many side by side as asked for."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from txl_lightning.data.datamodule import StreamsDataModule
from txl_lightning.errors import UserError
from txl_lightning.evaluation.scoring import Score, score_streams
from txl_lightning.lengths import evaluation_lengths, extended_context
from txl_lightning.runs.checkpoints import load_trained


@dataclass(frozen=True)
class Training:
    """One run of `txl train`.

    Args:
        name: unique among the runs; the run directory's name.
        arm: what is compared.
        seed: of initialisation and dropout.
        overrides: as typed behind `txl train`.
    """

    name: str
    arm: str
    seed: int
    overrides: tuple[str, ...]


def train_all(jobs: list[Training], directory: Path, parallel: int) -> dict[str, dict[str, Any]]:
    """Run all jobs, `parallel` at a time with the processor cores divided, and return their metrics by name.

    Raises:
        UserError: a run failed; its log is named.
    """
    threads = max(1, (os.cpu_count() or 1) // parallel)

    def run(job: Training) -> dict[str, Any]:
        run_directory = directory / job.name
        run_directory.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "txl_lightning.cli", "train", *job.overrides, f"seed={job.seed}"]
        command += [f"trainer.num_threads={threads}", f"hydra.run.dir={run_directory}"]
        log = run_directory / "log.txt"
        started = time.perf_counter()
        with log.open("w") as stream:
            status = subprocess.run(
                command, stdout=stream, stderr=subprocess.STDOUT, env=os.environ | {"OMP_NUM_THREADS": str(threads)}
            ).returncode
        if status:
            raise UserError(f"{job.name} ended with exit status {status}: see {log}")
        print(f"  trained {job.name} in {time.perf_counter() - started:.0f} s", flush=True)
        metrics: dict[str, Any] = json.loads((run_directory / "metrics.json").read_text())
        return metrics

    with ThreadPoolExecutor(parallel) as pool:
        return dict(zip((job.name for job in jobs), pool.map(run, jobs), strict=True))


def evaluate_all(
    jobs: list[Training], directory: Path, mem_lens: list[int], parallel: int
) -> dict[str, dict[int, Score]]:
    """Test scores of every run's best weights at every memory length, the rest as the run was evaluated."""
    threads = max(1, (os.cpu_count() or 1) // parallel)
    paths = [directory / job.name / "checkpoints" / "best.ckpt" for job in jobs]
    with ProcessPoolExecutor(parallel, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = [pool.submit(_evaluate, path, mem_lens, threads) for path in paths]
        return {job.name: future.result() for job, future in zip(jobs, waiting, strict=True)}


def _evaluate(path: Path, mem_lens: list[int], threads: int) -> dict[int, Score]:
    torch.set_num_threads(threads)
    trained = load_trained(path)
    config = trained.config
    model: Any = trained.model
    streams = StreamsDataModule(config.data, config.evaluation, extended_context(config)).streams("test")
    lengths = evaluation_lengths(config)
    return {
        mem_len: score_streams(
            model.with_lengths(**{**lengths, "mem_len": mem_len}), streams, config.evaluation.max_segments
        )
        for mem_len in mem_lens
    }
