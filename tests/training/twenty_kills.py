"""Kill twenty runs in the middle of a step, repeat the command, and compare all that is left to the bit.

    python -m tests.training.twenty_kills [FOLDER]

Each arm is trained once without a kill. Its other run is killed by SIGKILL at one step after the other, on the ranks by
turns, and resumed each time; then it goes on to its end. Compared are losses of every step, metrics, curves, weights,
memory and the step of the best checkpoint.
"""

from __future__ import annotations

import random
import signal
import sys
import tempfile
from pathlib import Path

from tests.training.recorded_run import recorded_losses, start
from tests.training.test_resume import OPTIONS, outcome

STEPS = 64  # an epoch has 56
ARMS = {
    "one process": ((), 4),
    "two ranks": (("trainer.devices=2",), 4),
    "W&B and CSV": (("logger=[csv,wandb]",), 3),
    "LSTM": (("model=lstm", "model.d_model=16"), 3),
    "compressive memory": (("variant=compressive", "variant.rate=2"), 3),
    "groups of streams": (("trainer.stream_groups=2",), 3),
}


def kill_and_compare(folder: Path, arm: str, overrides: tuple[str, ...], n_kills: int) -> bool:
    """Train an arm with and without kills; print a line for each kill and return whether both are equal."""
    options = (*OPTIONS, f"trainer.max_steps={STEPS}", *overrides)
    whole = folder / "whole"
    killed = folder / "killed"
    for directory in (whole, killed):
        directory.mkdir(parents=True)
    start(whole, *options).succeed()
    n_ranks = 2 if arm == "two ranks" else 1
    moments = sorted(random.Random(arm).sample(range(2, STEPS), n_kills))
    for i, step in enumerate(moments):
        done = start(killed, *options, at=step, signal=signal.SIGKILL, rank=i % n_ranks).finish()
        is_killed = done.returncode != 0 and not (killed / "run/metrics.json").exists()
        print(
            f"{arm}: SIGKILL in step {step} of {STEPS}, rank {i % n_ranks}: {is_killed}", flush=True
        )
        if not is_killed:
            return False
    start(killed, *options).succeed()
    differences = []
    if set(recorded_losses(whole / "run")) != set(recorded_losses(killed / "run")):
        differences.append("losses")
    found = outcome(killed)
    for name, value in outcome(whole).items():
        if found[name] != value:
            differences.append(name)
    print(f"{arm}: {', '.join(differences) or 'equal to the bit'}", flush=True)
    return not differences


def main() -> None:
    """Kill the runs of every arm and exit with 1 if one differs."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    n_kills = 0
    n_equal = 0
    for arm, (overrides, kills) in ARMS.items():
        n_kills += kills
        n_equal += kill_and_compare(folder / arm.replace(" ", "_"), arm, overrides, kills)
    print(f"{n_kills} kills, {n_equal} of {len(ARMS)} arms equal to the bit")
    sys.exit(n_equal != len(ARMS))


if __name__ == "__main__":
    main()
