"""Training speed beside Hugging Face's TransfoXLLMHeadModel (`make bench`).

Two worker processes take turns, so that whatever else the machine does hits both. Only ratios within a round
compare them; the numbers of tokens per second belong to the machine.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch

from experiments.bench_worker import CLIP, Setup

ROOT = Path(__file__).parent.parent
PYTHONS = {"ours": Path(sys.executable), "huggingface": ROOT / ".venv-transformers" / "bin" / "python"}
LABELS = {"ours": "ours", "huggingface": "Hugging Face"}
CASES = {
    "tiny": Setup(n_layer=2, d_model=32, n_head=4, d_inner=64, segment=16, batch_size=4, steps=5),
    "small": Setup(n_layer=4, d_model=128, n_head=8, d_inner=512, segment=64, batch_size=16, steps=5),
    "large": Setup(n_layer=6, d_model=256, n_head=8, d_inner=1024, segment=128, batch_size=16, steps=2),
}
CUDA_STEPS = 20  # times as many steps a round
PAUSE = 0.2  # seconds before a turn, in which the other's threads go to sleep
BEGIN, END = "<!-- bench:training begin -->", "<!-- bench:training end -->"
HEADER = "# Benchmarks\n\nRepeat them with `make bench`, which rewrites its sections of this file.\n"

Choice = TypeVar("Choice")


class Worker:
    """A process that trains one implementation when asked, and is idle otherwise."""

    def __init__(self, implementation: str, setup: Setup) -> None:
        self.implementation = implementation
        self.process = subprocess.Popen(
            [PYTHONS[implementation], "-m", "experiments.bench_worker", implementation, json.dumps(asdict(setup))],
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
        """Seconds of so many training steps."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"steps": steps}) + "\n")
        self.process.stdin.flush()
        return self.answer()["seconds"]

    def stop(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()


def measure(implementations: Sequence[str], setup: Setup, rounds: int, warmup: int) -> dict[str, Any]:
    """Rounds in which every implementation takes one turn; who begins alternates."""
    with ExitStack() as stack:
        workers = {}
        for name in implementations:
            workers[name] = Worker(name, setup)
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
    pairs = zip(speeds.get("ours", ()), speeds.get("huggingface", ()), strict=False)
    return {
        "setup": asdict(setup),
        "workers": {name: worker.description for name, worker in workers.items()},
        "tokens_per_second": speeds,
        "ratios": [a / b for a, b in pairs],
    }


def table(results: Sequence[dict[str, Any]]) -> str:
    """The results as a Markdown table that is aligned as text too."""
    names = list(results[0]["workers"])
    ratio = "ours / Hugging Face (min–max)"
    header = ["case", "dropout", *(f"{LABELS[name]}, tokens/s" for name in names)]
    rows = [header + [ratio] * (len(names) > 1) + [f"parameters, {LABELS[name]}" for name in names]]
    for result in results:
        row = [result["case"], f"{result['setup']['dropout']:g}"]
        row += [f"{median(result['tokens_per_second'][name]):,.0f}" for name in names]
        if ratios := result["ratios"]:
            row.append(f"{median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})")
        rows.append(row + [f"{result['workers'][name]['parameters']:,}" for name in names])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])])
    cells = [[row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def section(report: dict[str, Any]) -> str:
    """What the terminal and BENCHMARKS.md show of a report."""
    results, setup = report["results"], report["results"][0]["setup"]
    cases = {
        result["case"]: "- {case}: {n_layer} layers, d_model {d_model}, {n_head} heads, d_inner {d_inner}, "
        "segment = memory = {segment}, batch {batch_size}, {steps} steps a round".format(**result, **result["setup"])
        for result in results
    }
    facts = {
        "date": report["date"],
        "processor": f"{report['processor']}, {setup['threads']} threads",
        "device": ", ".join(filter(None, [setup["device"], *versions(results, "accelerator"), setup["precision"]])),
        "torch": " and ".join(versions(results, "torch")),
        "transformers": " and ".join(versions(results, "transformers")) or "not measured",
        "command": f"`{report['command']}`",
    }
    return "\n".join(
        [
            "## Training speed",
            "",
            "A step is the forward pass with the memory carried along, the mean loss, the backward pass, clipping at",
            f"{CLIP} and an update of fused Adam. The implementations are processes that take turns; the speed is the",
            f"median of {report['rounds']} rounds, the ratio the median of the ratios within a round. Above 1, ours is"
            " faster.",
            "",
            table(results),
            "",
            *cases.values(),
            "",
            *(f"- {name}: {fact}" for name, fact in facts.items()),
        ]
    )


def versions(results: Sequence[dict[str, Any]], key: str) -> list[str]:
    """What the workers say of `key`, each answer once."""
    return sorted({worker[key] for result in results for worker in result["workers"].values()} - {None})


def write_section(path: Path, text: str) -> None:
    """Replace what stands between the markers, or append it; the rest of the file is left alone."""
    page = path.read_text(encoding="utf-8") if path.exists() else HEADER
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if begin and not end:
        raise SystemExit(f"bench: {path} has {BEGIN} without {END}; nothing was written there")
    if not begin:
        before, after = before.rstrip() + "\n\n", "\n"
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def processor() -> str:
    """The processor's model."""
    information = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.+)", information.read_text()) if information.exists() else None
    return found[1] if found else platform.processor() or platform.machine()


def several(convert: Callable[[str], Choice], allowed: Sequence[Choice] = ()) -> Callable[[str], list[Choice]]:
    """An argparse type: values between commas, each once."""

    def parse(text: str) -> list[Choice]:
        values = list(dict.fromkeys(convert(part) for part in text.split(",")))
        for value in values:
            if allowed and value not in allowed:
                raise argparse.ArgumentTypeError(f"{value!r} is none of {', '.join(map(str, allowed))}")
        return values

    return parse


def at_least(minimum: int) -> Callable[[str], int]:
    """An argparse type: integers from `minimum` on."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < minimum:
            raise argparse.ArgumentTypeError(f"{text!r} is no integer >= {minimum}")
        return int(text)

    return parse


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    description = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser("python -m experiments.bench", description=description, allow_abbrev=False)
    add = parser.add_argument
    add("--implementations", type=several(str, list(PYTHONS)), default="ours,huggingface", metavar="NAME,…")
    add("--cases", type=several(str, list(CASES)), default="small,large", metavar="NAME,…", help=", ".join(CASES))
    add("--dropout", type=several(float), default="0.1,0", metavar="P,…")
    add("--rounds", type=at_least(1), default=7)
    add("--warmup", type=at_least(0), default=2, help="rounds before those that count")
    add("--steps", type=at_least(1), help=f"steps a round; by default the case's own, {CUDA_STEPS} times that on cuda")
    add("--threads", type=at_least(1), default=2)
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--precision", choices=("float32", "bf16"), default="float32", help="bf16: autocast")
    add("--markdown", type=Path, default=ROOT / "BENCHMARKS.md", help="file whose section is rewritten")
    add("--output", type=Path, help="file for everything measured, as JSON")
    return parser


def main() -> int:
    """Measure, print and write; 2 if an environment is missing."""
    parser = arguments()
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds none here")
    if options.precision == "bf16" and options.device == "cpu":
        parser.error("--precision bf16 needs --device cuda: Hugging Face's loss cannot autocast on a processor")
    for name in options.implementations:
        if not PYTHONS[name].exists():
            print(f"bench: {PYTHONS[name].relative_to(ROOT)} is missing; `make bench` builds it", file=sys.stderr)
            return 2

    results = []
    for case in options.cases:
        for dropout in options.dropout:
            print(f"bench: {case}, dropout {dropout:g} …", file=sys.stderr)
            setup = replace(
                CASES[case],
                dropout=dropout,
                threads=options.threads,
                device=options.device,
                precision=options.precision,
                steps=options.steps or CASES[case].steps * (CUDA_STEPS if options.device == "cuda" else 1),
            )
            results.append({"case": case, **measure(options.implementations, setup, options.rounds, options.warmup)})
    report = {
        "date": datetime.date.today().isoformat(),
        "processor": processor(),
        "command": " ".join([parser.prog, *given(sys.argv[1:])]),
        "rounds": options.rounds,
        "results": results,
    }
    text = section(report)
    print(text)
    if options.output:
        options.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    write_section(options.markdown, text)
    return 0


def given(words: Sequence[str]) -> list[str]:
    """The command line without the files it writes."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--markdown")
    parser.add_argument("--output")
    return parser.parse_known_args(words)[1]


if __name__ == "__main__":
    sys.exit(main())
