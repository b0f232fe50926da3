"""Run in processes of its own that records the loss of every step and may be ended in the middle of one.

    recorded_run DIRECTORY '{"at": 17, "signal": 9, "rank": 0}' [overrides]
    recorded_run FILE                                                            a further rank

The losses are in DIRECTORY/run/losses.txt as `step loss`, hexadecimal and therefore exact.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

from tests.forked import ForkedCommand, start_module
from tests.training.small_run import tiny_config
from txl_lightning.config.schemas import from_plain, plain
from txl_lightning.errors import Stopped
from txl_lightning.ranks import further_ranks, leaving
from txl_lightning.training import run
from txl_lightning.training.module import LanguageModelModule
from txl_lightning.training.run import train

Run = tuple[dict[str, Any], str, dict[str, Any]]
"""Config, directory and event of `recorded_run`."""


def recorded_runs(runs: list[Run]) -> None:
    """Train several runs one after the other in the same processes."""
    with leaving():
        for run_of_list in runs:
            recorded_run(*run_of_list)


def run_on_all(runs: list[Run], n_ranks: int) -> None:
    """Train several runs one after the other, on as many ranks as their configs say."""
    with further_ranks(n_ranks, __name__, runs):
        recorded_runs(runs)


def recorded_run(config: dict[str, Any], directory: str, event: dict[str, Any]) -> None:
    """Train and print the metrics; in step `event["at"]`, rank `event["rank"]` gets the signal or raises an error."""

    class Recorded(LanguageModelModule):
        step_loss = 0.0

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            step = self.trainer.global_step + 1
            n_groups = self.trainer.accumulate_grad_batches
            if batch.group == 0:
                self.step_loss = 0.0
            self.step_loss += float(loss.detach()) / n_groups
            if batch.group + 1 < n_groups:
                return loss
            mean = self.ranks.total(self.step_loss)[0] / self.ranks.world_size
            if self.ranks.rank == 0:
                with (Path(directory) / "losses.txt").open("a") as file:
                    file.write(f"{step} {mean.hex()}\n")
            if step == event.get("at") and self.ranks.rank == event["rank"]:
                if "signal" not in event:
                    raise RuntimeError("something broke")
                os.kill(os.getpid(), event["signal"])
            return loss

    Path(directory).mkdir(exist_ok=True)
    run.LanguageModelModule = Recorded
    try:
        print(json.dumps(train(from_plain(config), Path(directory))))
    except Stopped as stopped:
        print(stopped)
    finally:
        run.LanguageModelModule = LanguageModelModule


def start(directory: Path, *overrides: str, **event: int) -> ForkedCommand:
    """Start this file as a command; the run directory is `directory / "run"`."""
    return start_module(
        directory, "tests.training.recorded_run", str(directory), json.dumps(event), *overrides
    )


def recorded_losses(directory: Path) -> list[tuple[int, float]]:
    """Return all recorded losses in order; a step of a resumed run may occur twice."""
    lines = (directory / "losses.txt").read_text().splitlines()
    return [(int(line.split()[0]), float.fromhex(line.split()[1])) for line in lines]


def main() -> None:
    """Train as the command line says, on as many processes as `trainer.devices`."""
    target = Path(sys.argv[1])
    if target.is_file():
        recorded_runs(pickle.loads(target.read_bytes()))
        return
    config = tiny_config(
        target,
        *sys.argv[3:],
    )
    runs = [(plain(config), str(target / "run"), json.loads(sys.argv[2]))]
    if config.trainer.devices > 1:
        run_on_all(runs, config.trainer.devices)
    else:
        recorded_runs(runs)


if __name__ == "__main__":
    main()
