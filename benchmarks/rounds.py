"""Rounds of a benchmark: one worker process for each implementation, which take turns.

Turns spread the machine's other load over all implementations; only ratios within a round compare them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.page import ROOT
from benchmarks.worker import BenchmarkCase

OWN, TRANSFORMERS = Path(sys.executable), ROOT / ".venv-transformers" / "bin" / "python"
PYTHONS = {"ours": OWN, "hidden": OWN, "huggingface": TRANSFORMERS}
PAUSE_SECONDS = 0.2  # before each turn, until the threads of the other worker sleep


class Worker:
    """Process that runs steps of one implementation on request and is idle otherwise.

    Args:
        workload: training or evaluation.
        implementation: key of `PYTHONS`.
        case: sizes.

    Attributes:
        description: number of parameters, versions and device.
    """

    def __init__(self, workload: str, implementation: str, case: BenchmarkCase) -> None:
        self.implementation = implementation
        words = [workload, implementation, json.dumps(asdict(case))]
        self.process = subprocess.Popen(
            [PYTHONS[implementation], "-m", "benchmarks.worker", *words],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.description = self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            raise SystemExit(f"bench: the worker for {self.implementation} failed; its error is above")
        return json.loads(line)

    def run(self, steps: int) -> float:
        """Run steps and return their seconds."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"steps": steps}) + "\n")
        self.process.stdin.flush()
        return self._answer()["seconds"]

    def stop(self) -> None:
        """Kill the process and wait for its end."""
        with self.process:  # closes its pipes
            self.process.kill()


def measure(
    workload: str, implementations: Sequence[str], case: BenchmarkCase, rounds: int, warmup: int
) -> dict[str, Any]:
    """Run rounds in which every implementation takes one turn, in alternating order.

    Returns:
        `setup` (the case), `workers` (their descriptions) and, with a number for each round after the warm-up,
        `tokens_per_second` and `ratios` (our speed / the speed of each other implementation).
    """
    with ExitStack() as stack:
        workers = {}
        for name in implementations:
            workers[name] = Worker(workload, name, case)
            stack.callback(workers[name].stop)
        seconds: dict[str, list[float]] = {name: [] for name in workers}
        order = list(workers)
        for _ in range(warmup + rounds):
            for name in order:
                time.sleep(PAUSE_SECONDS)
                seconds[name].append(workers[name].run(case.steps))
            order.reverse()
    tokens = case.steps * case.batch_size * case.segment
    speeds = {name: [tokens / taken for taken in values[warmup:]] for name, values in seconds.items()}
    return {
        "setup": asdict(case),
        "workers": {name: worker.description for name, worker in workers.items()},
        "tokens_per_second": speeds,
        "ratios": {
            name: [a / b for a, b in zip(speeds["ours"], values, strict=True)]
            for name, values in speeds.items()
            if "ours" in speeds and name != "ours"
        },
    }
