"""Compare two checkouts' speed in alternating pairs, by CPU time with one thread.

    python -m benchmarks.pairs OTHER_CHECKOUT [--cases small words …] [--pairs 200] [--bf16]

Each checkout has a worker process that keeps its model. A pair is a turn by each, in alternating order.
The result is the median of the pairs' ratios (other / this: above 1 this checkout is faster), with
its 95 % interval. CPU time makes it usable beside other work; run it again on a quiet machine before
a number is quoted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
NAMES = (
    "laptop",
    "small",
    "medium",
    "words",
    "base",
    "evaluation",
    "evaluation-10",
    "token",
    "generation",
)


def turn_of(name: str, bf16: bool) -> Callable[[], Any]:
    """Return a function that does one turn; with bf16 a training step runs under autocast, as in bf16-mixed."""
    import torch

    from benchmarks.bench import CASES, LONG, Case, ours

    torch.set_num_threads(1)
    torch.manual_seed(0)
    cases = {
        **CASES,
        "laptop": Case(n_layer=3, d_model=96, n_head=6, batch_size=16, segment=64, memory=64),
        "evaluation-10": replace(LONG, segment=80, memory=2100, batch_size=10, steps=1),
    }
    if name == "generation":
        return generation_turn()
    case = cases[name]
    model, step = ours(case)
    window = torch.randint(case.vocab_size, (case.batch_size, case.segment + 1))
    memory: Any = None
    if case.work != "training":
        model.eval()
        with torch.no_grad():
            for _ in range(3):
                _, memory = step(window, memory)

        def evaluate() -> None:
            nonlocal memory
            with torch.no_grad():
                _, memory = step(window, memory)

        return evaluate
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)

    def train() -> None:
        nonlocal memory
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss, memory = step(window, memory)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()

    return train


def generation_turn() -> Callable[[], Any]:
    """Return a function that draws 20 tokens for 4 prompts."""
    import torch

    from txl_lightning import TransformerXL, TransformerXLConfig, generate

    sizes: dict[str, Any] = {
        "n_layer": 4,
        "d_model": 128,
        "n_head": 8,
        "d_head": 16,
        "d_inner": 512,
    }
    model = TransformerXL(TransformerXLConfig(vocab_size=256, mem_len=256, **sizes)).eval()
    prompt_BT = torch.randint(256, (4, 64))
    return lambda: list(generate(model, prompt_BT, 20))


def work(name: str, bf16: bool) -> None:
    """Do a turn for every input line and print its CPU seconds."""
    turn = turn_of(name, bf16)
    turn()
    for _ in sys.stdin:
        begun = time.process_time()
        turn()
        print(time.process_time() - begun, flush=True)


class Worker:
    """Process that does one case's turns in one checkout."""

    def __init__(self, checkout: Path, name: str, bf16: bool) -> None:
        arguments = ["pairs", "--worker", name]
        if bf16:
            arguments.append("--bf16")
        path = str(Path(__file__).resolve())
        code = f"import runpy, sys; sys.argv = {arguments!r}; "
        code += f"runpy.run_path({path!r}, run_name='__main__')"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=checkout,
            env=dict(os.environ, PYTHONPATH=str(checkout), OMP_NUM_THREADS="1"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def seconds(self) -> float:
        """Do one turn and return its CPU seconds."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("turn\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def compare(other: Path, name: str, n_pairs: int, bf16: bool) -> dict[str, float]:
    """Return both checkouts' median seconds, and the median of the pairs' ratios with its interval."""
    this_worker = Worker(ROOT, name, bf16)
    other_worker = Worker(other, name, bf16)
    order = [this_worker, other_worker]
    ours = []
    theirs = []
    ratios = []
    for _ in range(n_pairs):
        seconds = {worker: worker.seconds() for worker in order}
        ours.append(seconds[this_worker])
        theirs.append(seconds[other_worker])
        ratios.append(theirs[-1] / ours[-1])
        order.reverse()
    for worker in order:
        worker.close()
    ratios.sort()
    spread = round(0.98 * n_pairs**0.5)  # ranks in a median's 95 % interval
    middle = n_pairs // 2
    return {
        "this_s": median(ours),
        "other_s": median(theirs),
        "other/this": median(ratios),
        "low": ratios[max(0, middle - spread)],
        "high": ratios[min(n_pairs - 1, middle + spread)],
    }


def main() -> None:
    """Print a JSON line for every case."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("other", type=lambda path: Path(path).resolve(), nargs="?", help="checkout to compare with")
    add("--cases", nargs="+", choices=NAMES, default=NAMES)
    add("--pairs", type=int, default=200)
    add("--bf16", action="store_true", help="training steps in bf16-mixed instead of float32")
    add("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, options.bf16)
        return
    for name in options.cases:
        row = {"case": name, "bf16": options.bf16, "pairs": options.pairs}
        for key, value in compare(options.other, name, options.pairs, options.bf16).items():
            row[key] = round(value, 5)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
