"""A run in processes of its own that leaves the loss of every step in a file, and may die in the middle of one.

    python -m tests.training.recorded_run DIRECTORY '{"at": 17, "signal": 9, "rank": 0}' [overrides]

The losses go to DIRECTORY/run/losses.txt as `step loss`, in hexadecimal, which is exact.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from tests.training.small_run import tiny_config
from txl_lightning.config.schemas import from_plain, plain
from txl_lightning.distributed.launch import run_on_all
from txl_lightning.errors import Stopped
from txl_lightning.training import build
from txl_lightning.training.module import LanguageModelModule
from txl_lightning.training.run import train

ROOT = Path(__file__).parents[2]


def recorded_runs(*runs: tuple[dict[str, Any], str]) -> None:
    """Several runs one after the other in the same processes."""
    for config, directory in runs:
        Path(directory).mkdir(exist_ok=True)
        recorded_run(config, directory, {})


def recorded_run(config: dict[str, Any], directory: str, event: dict[str, Any]) -> str:
    """Train; in the forward pass of step `event["at"]`, do to rank `event["rank"]` what it says."""

    class Recorded(LanguageModelModule):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            loss = super().training_step(batch, batch_idx)
            step = self.trainer.global_step + 1
            mean = self.ranks.total(float(self.loss))[0] / self.ranks.world_size
            if self.ranks.rank == 0:
                with (Path(directory) / "losses.txt").open("a") as file:
                    file.write(f"{step} {mean.hex()}\n")
            if step == event.get("at") and self.ranks.rank == event["rank"]:
                if "signal" not in event:
                    raise RuntimeError("something broke")
                os.kill(os.getpid(), event["signal"])
            return loss

    build.LanguageModelModule = Recorded  # type: ignore[misc]
    try:
        return json.dumps(train(from_plain(config), Path(directory)))
    except Stopped as stopped:
        return str(stopped)
    finally:
        build.LanguageModelModule = LanguageModelModule  # type: ignore[misc]


def start(directory: Path, *overrides: str, **event: int) -> subprocess.CompletedProcess[str]:
    """Run this file; the run directory is `directory / "run"`."""
    command = [sys.executable, "-m", "tests.training.recorded_run", str(directory), json.dumps(event), *overrides]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)


def recorded_losses(directory: Path) -> list[tuple[int, float]]:
    """Everything that was written, in order; a step may come twice."""
    lines = (directory / "losses.txt").read_text().splitlines()
    return [(int(line.split()[0]), float.fromhex(line.split()[1])) for line in lines]


if __name__ == "__main__":
    target = Path(sys.argv[1])
    config = tiny_config(target, *sys.argv[3:])
    (target / "run").mkdir(exist_ok=True)
    arguments = (plain(config), str(target / "run"), json.loads(sys.argv[2]))
    W = config.trainer.devices
    print(recorded_run(*arguments) if W == 1 else run_on_all(recorded_run, *arguments, processes=W))
