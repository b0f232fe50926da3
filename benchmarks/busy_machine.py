"""Time `txl train` beside other busy programs: `python -m benchmarks.busy_machine`, a table in Markdown on stdout.

Each turn trains the laptop profile once for every number of threads beside none, one and two programs that compute
without end. A time is that of the whole command, with its start and an evaluation of 100 segments of each split.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from statistics import median

from txl_lightning.reporting.machine import processor

THREADS = {"auto": "null", "one": "1", "two": "2"}
BUSY = "while True: sum(range(10**6))"
TRAIN = "import sys; from txl_lightning.cli import main; sys.argv[0] = 'txl'; main()"


def seconds_of(threads: str, busy: int, steps: int) -> float:
    """Return the wall time of one `txl train` in seconds, beside `busy` programs."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        for _ in range(busy):
            stack.callback(subprocess.Popen([sys.executable, "-c", BUSY]).kill)
        words = ["train", f"trainer.max_steps={steps}", f"trainer.num_threads={threads}", "evaluation.max_segments=100"]
        words += ["logger=none", "trainer.progress_bar=false", f"hydra.run.dir={folder}/run"]
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", TRAIN, *words], check=True, capture_output=True)
        return time.perf_counter() - started


def main() -> None:
    """Train in turns and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300, help="training steps of a run")
    parser.add_argument("--rounds", type=int, default=3, help="turns; the table shows the median")
    options = parser.parse_args()
    seconds: dict[tuple[str, int], list[float]] = {(name, busy): [] for name in THREADS for busy in range(3)}
    for turn in range(options.rounds):
        for name, busy in seconds:
            seconds[name, busy].append(seconds_of(THREADS[name], busy, options.steps))
        print(f"turn {turn + 1} of {options.rounds}", file=sys.stderr, flush=True)
    command = f"txl train trainer.max_steps={options.steps} evaluation.max_segments=100"
    print(f"`{command}`, seconds, median of {options.rounds}; {processor()}\n")
    print("| trainer.num_threads | alone | beside one busy program | beside two |\n| --- | ---: | ---: | ---: |")
    for name in THREADS:
        print(f"| {name} |" + "".join(f" {median(seconds[name, busy]):.1f} |" for busy in range(3)))


if __name__ == "__main__":
    main()
