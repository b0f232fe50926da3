"""Rounds of a benchmark: one worker process for each implementation, which take turns.

Turns spread the machine's other load over all implementations; only ratios within a round compare them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.cases import BenchmarkCase, TurnTaking
from benchmarks.page import ROOT

OWN, TRANSFORMERS = Path(sys.executable), ROOT / ".venv-transformers" / "bin" / "python"
PAUSE_SECONDS = 0.2  # before each turn, until the threads of the other worker sleep


class Worker:
    """Process that runs steps of one implementation on request and is idle otherwise.

    Args:
        workload: key of `WORKLOADS`.
        turn: implementation and precision, such as `ours bf16`.
        sizes: sizes of the case.

    Attributes:
        description: number of parameters, versions and device.
    """

    def __init__(self, workload: str, turn: str, sizes: BenchmarkCase) -> None:
        self.turn = turn
        implementation, precision = turn.split()
        python = TRANSFORMERS if implementation == "huggingface" else OWN
        words = [workload, implementation, json.dumps(asdict(replace(sizes, precision=precision)))]
        self.process = subprocess.Popen(
            [python, "-m", "benchmarks.worker", *words],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self) -> None:
        """Wait until the process is ready."""
        self.description = self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            raise SystemExit(f"bench: the worker for {self.turn} failed; its error is above")
        return json.loads(line)

    def run(self, steps: int) -> dict[str, Any]:
        """Run steps and return their `seconds`, and the `peak_bytes` of the process so far."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"steps": steps}) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def stop(self) -> None:
        """Kill the process and wait for its end."""
        with self.process:  # closes its pipes
            self.process.kill()


def measure(comparison: TurnTaking, rounds: int, warmup: int) -> dict[str, Any]:
    """Run rounds in which every process takes one turn, in alternating order.

    Returns:
        `workers` (their descriptions), `peak_bytes` and, with a number for each round after the warm-up, `seconds`;
        all by turn.
    """
    sizes = comparison.sizes
    with ExitStack() as stack:
        workers = [Worker(comparison.workload, turn, sizes) for turn in comparison.turns]
        for worker in workers:
            stack.callback(worker.stop)
        for worker in workers:
            worker.start()
        answers: dict[str, list[dict[str, Any]]] = {worker.turn: [] for worker in workers}
        for i in range(warmup + rounds):
            for worker in workers if i % 2 == 0 else reversed(workers):
                time.sleep(PAUSE_SECONDS)
                answers[worker.turn].append(worker.run(sizes.steps))
    return {
        "workers": {worker.turn: worker.description for worker in workers},
        "peak_bytes": {turn: given[-1]["peak_bytes"] for turn, given in answers.items()},
        "seconds": {turn: [answer["seconds"] for answer in given[warmup:]] for turn, given in answers.items()},
    }
