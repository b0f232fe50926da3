"""Kill twenty runs in the middle of a step, repeat the command, and compare all that is left to the bit.

    python -m tests.training.twenty_kills [FOLDER]

Each arm is trained once without a kill. Its other run is killed by SIGKILL at one step after the other, on the ranks by
turns, and resumed each time; then it goes on to its end. Compared are losses of every step, metrics, curves, weights,
memory and the step of the best checkpoint.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.training.recorded_run import recorded_losses, start
from tests.training.small_run import logged_rows, stored_memory
from txl_lightning.evaluation.trained import read_file

STEPS = 64  # an epoch has 56
OPTIONS = (
    f"trainer.max_steps={STEPS}",
    "trainer.val_every_n_steps=30",
    "trainer.val_max_segments=3",
    "trainer.log_every_n_steps=7",
    "checkpoint.every_n_steps=20",
    "evaluation.max_segments=3",
    "model.dropout=0.2",
    "data.random_start=true",
    "loss=random_half",
    "logger=csv",
    "resume=auto",
)
ARMS = {
    "one process": ((), 4),
    "two ranks": (("trainer.devices=2",), 4),
    "W&B and CSV": (("logger=[csv,wandb]",), 3),
    "LSTM": (("model=lstm", "model.d_model=16"), 3),
    "compressive memory": (("variant=compressive", "variant.rate=2"), 3),
    "groups of streams": (("trainer.stream_groups=2",), 3),
}
VARYING = (
    "commit",
    "seconds",
    "peak_memory_bytes",
    "train/tokens_per_second",
    "train/peak_memory_bytes",
)


def kill_and_compare(folder: Path, arm: str, n_kills: int) -> bool:
    """Train an arm with and without kills; print a line for each kill and return whether both are equal."""
    options = (*OPTIONS, *ARMS[arm][0])
    whole = folder / "whole"
    killed = folder / "killed"
    for directory in (whole, killed):
        directory.mkdir(parents=True)
    start(whole, *options).succeed()
    n_ranks = 2 if arm == "two ranks" else 1
    steps = random.Random(arm).sample(range(2, STEPS), n_kills)
    for i, step in enumerate(sorted(steps)):
        rank = i % n_ranks
        done = start(killed, *options, at=step, signal=signal.SIGKILL, rank=rank).finish()
        is_killed = done.returncode != 0 and not (killed / "run/metrics.json").exists()
        print(
            f"{arm}: SIGKILL in step {step} of {STEPS}, rank {rank}: {is_killed}",
            flush=True,
        )
        if not is_killed:
            return False
    start(killed, *options).succeed()
    found = differences(whole / "run", killed / "run")
    print(
        f"{arm}: {', '.join(found) or 'equal to the bit'}",
        flush=True,
    )
    return not found


def differences(whole: Path, interrupted: Path) -> list[str]:
    """Return what differs between two runs and must not depend on interruptions."""
    expected = outcome(whole)
    found = outcome(interrupted)
    return [name for name, value in expected.items() if found[name] != value]


def outcome(run: Path) -> dict[str, Any]:
    """Return everything of a run that must not depend on interruptions."""
    last = run / "checkpoints/last.ckpt"
    rows = [
        json.loads((run / "metrics.json").read_text()),
        *logged_rows(run / "csv"),
    ]
    for line in (run / "validation.jsonl").read_text().splitlines():
        rows.append(json.loads(line))
    for row in rows:
        for name in VARYING:
            row.pop(name, None)
    return {
        "losses": set(recorded_losses(run)),
        "rows": rows,
        "weights": as_lists(read_file(last)["state_dict"]),
        "memory": as_lists(stored_memory(last).state_dict()),
        "best": read_file(run / "checkpoints/best.ckpt")["global_step"],
    }


def as_lists(values: dict[str, Any]) -> dict[str, Any]:
    """Return tensors as lists, which compare to the bit."""
    lists = {}
    for name, value in values.items():
        lists[name] = value.tolist() if hasattr(value, "tolist") else value
    return lists


def main() -> None:
    """Kill the runs of every arm and exit with 1 if one differs."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    n_kills = 0
    n_equal = 0
    for arm, (_, kills) in ARMS.items():
        n_kills += kills
        n_equal += kill_and_compare(
            folder / arm.replace(" ", "_"),
            arm,
            kills,
        )
    print(f"{n_kills} kills, {n_equal} of {len(ARMS)} arms equal to the bit")
    sys.exit(n_equal != len(ARMS))


if __name__ == "__main__":
    main()
