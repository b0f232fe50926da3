"""How `benchmarks.bench` measures and writes: worker processes take turns, a section of a page is replaced.

Whatever else the machine does hits all of them. Only ratios within a round compare them.
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
from statistics import median
from typing import Any

from benchmarks.worker import Setup

ROOT = Path(__file__).parent.parent
OWN, TRANSFORMERS = Path(sys.executable), ROOT / ".venv-transformers" / "bin" / "python"
PYTHONS = {"ours": OWN, "hidden": OWN, "huggingface": TRANSFORMERS}
PAUSE = 0.2  # seconds before a turn, in which the other's threads go to sleep
HEADER = "# Benchmarks\n\nRepeat them with `make bench`, which rewrites its sections of this file.\n"


class Worker:
    """A process that runs a task with one implementation when asked, and is idle otherwise."""

    def __init__(self, task: str, implementation: str, setup: Setup) -> None:
        self.implementation = implementation
        words = [task, implementation, json.dumps(asdict(setup))]
        self.process = subprocess.Popen(
            [PYTHONS[implementation], "-m", "benchmarks.worker", *words],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.description = self.answer()

    def answer(self) -> dict[str, Any]:
        """The worker's next answer."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            raise SystemExit(f"bench: the worker for {self.implementation} has failed; its error stands above")
        return json.loads(line)

    def run(self, steps: int) -> float:
        """Seconds of so many steps."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"steps": steps}) + "\n")
        self.process.stdin.flush()
        return self.answer()["seconds"]

    def stop(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()


def measure(task: str, implementations: Sequence[str], setup: Setup, rounds: int, warmup: int) -> dict[str, Any]:
    """Rounds in which every implementation takes one turn; who begins alternates.

    `tokens_per_second` and `ratios` (how many times the others' speed ours is) have a number for every round.
    """
    with ExitStack() as stack:
        workers = {}
        for name in implementations:
            workers[name] = Worker(task, name, setup)
            stack.callback(workers[name].stop)
        seconds: dict[str, list[float]] = {name: [] for name in workers}
        order = list(workers)
        for _ in range(warmup + rounds):
            for name in order:
                time.sleep(PAUSE)
                seconds[name].append(workers[name].run(setup.steps))
            order.reverse()
    tokens = setup.steps * setup.batch_size * setup.segment
    speeds = {name: [tokens / taken for taken in values[warmup:]] for name, values in seconds.items()}
    return {
        "setup": asdict(setup),
        "workers": {name: worker.description for name, worker in workers.items()},
        "tokens_per_second": speeds,
        "ratios": {
            name: [a / b for a, b in zip(speeds["ours"], values, strict=True)]
            for name, values in speeds.items()
            if "ours" in speeds and name != "ours"
        },
    }


def spread(ratios: Sequence[float]) -> str:
    """Median, lowest and highest."""
    digits = 2 if median(ratios) < 10 else 1
    return f"{median(ratios):.{digits}f} ({min(ratios):.{digits}f}–{max(ratios):.{digits}f})"


def aligned(rows: Sequence[Sequence[str]], n_left: int = 1) -> str:
    """A Markdown table that is aligned as text too: the first row is the header, `n_left` columns hold words."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [[*("-" * w for w in widths[:n_left]), *("-" * (w - 1) + ":" for w in widths[n_left:])]]
    for row in rows:
        left, right = zip(row[:n_left], widths, strict=False), zip(row[n_left:], widths[n_left:], strict=True)
        lines.append([*(cell.ljust(w) for cell, w in left), *(cell.rjust(w) for cell, w in right)])
    lines[0], lines[1] = lines[1], lines[0]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def versions(results: Sequence[dict[str, Any]], key: str) -> list[str]:
    """What the workers say of `key`, each answer once."""
    return sorted({worker[key] for result in results for worker in result["workers"].values()} - {None})


def write_section(path: Path, name: str, text: str) -> None:
    """Replace what stands between the section's markers, or append it; the rest of the file is left alone."""
    begin_marker, end_marker = f"<!-- bench:{name} begin -->", f"<!-- bench:{name} end -->"
    page = path.read_text(encoding="utf-8") if path.exists() else HEADER
    before, begin, rest = page.partition(begin_marker)
    _, end, after = rest.partition(end_marker)
    if begin and not end:
        raise SystemExit(f"bench: {path} has {begin_marker} without {end_marker}; nothing was written there")
    if not begin:
        before, after = before.rstrip() + "\n\n", "\n"
    path.write_text(f"{before}{begin_marker}\n{text}\n{end_marker}{after}", encoding="utf-8")
