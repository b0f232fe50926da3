"""Measure speed and memory beside Hugging Face's TransfoXL, and write BENCHMARKS.md (`make bench`).

Each case is a job in a process of its own. Its result is kept when it ends: a bench that was stopped continues where it
was. A case is measured again if its sizes, its rounds, the code that it runs, torch or the machine changed; one of a
command also if conf/ changed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.bench_sections import SECTIONS, section, write_section
from benchmarks.cases import comparisons
from benchmarks.commands import COMMANDS
from benchmarks.worker import ROOT, TRANSFORMERS, measure
from txl_lightning.cli import ROWS
from txl_lightning.errors import UserError
from txl_lightning.files import file_checksum, write_json
from txl_lightning.jobs.identity import code_of
from txl_lightning.jobs.processes import Ended, JobProcess, Jobs, Progress
from txl_lightning.reporting.machine import processor

ROUNDS, WARMUP = 7, 1
PAGE = ROOT / "BENCHMARKS.md"
RESULTS = ROOT / "benchmarks" / "results"
CONF = ROOT / "conf"
CUDA_STEPS = 20  # a turn on CUDA has this many times the steps


@dataclass(frozen=True)
class Task:
    """Case to measure.

    Args:
        name: section/case.
        measure: returns the record of the case.
        minutes: expected time.
        identity: everything that the record depends on, as JSON.
    """

    name: str
    measure: Callable[[], dict[str, Any]]
    minutes: float
    identity: dict[str, Any]
    needs: tuple[str, ...] = ()
    alone: bool = True


def tasks(options: argparse.Namespace) -> dict[str, Task]:
    """Return the chosen tasks by section/case, in the order in which they are measured."""
    device = torch.cuda.get_device_name() if options.device == "cuda" else processor()
    common = {"package": code_of("benchmarks.worker"), "torch": torch.__version__, "processor": device}
    found: dict[str, Task] = {}
    for name, case in comparisons().items():
        most = case.rounds or ROUNDS
        rounds = min(options.rounds, most)
        turns = tuple(t for t in case.turns if options.huggingface or not t.startswith("huggingface"))
        steps = case.sizes.steps * (CUDA_STEPS if options.device == "cuda" else 1)
        sizes = replace(case.sizes, threads=options.threads, device=options.device, steps=steps)
        own = partial(measure, replace(case, sizes=sizes, turns=turns), rounds, WARMUP)
        identity = {**common, "rounds": rounds, "turns": turns, "sizes": asdict(sizes)}
        found[name] = Task(
            name, own, case.minutes * (rounds + WARMUP) / (most + WARMUP), json.loads(json.dumps(identity))
        )
    if options.device == "cpu":
        packages = (f"{row.package}.command" for row in ROWS)
        common["package"] = code_of("benchmarks.commands", "txl_lightning.command_line.hydra_app", *packages)
        conf = [file_checksum(path) for path in sorted(CONF.rglob("*.yaml"))]
        for name, (command, most, minutes) in COMMANDS.items():
            rounds = min(options.rounds, most)
            own = partial(in_scratch, command, rounds)
            found[name] = Task(name, own, minutes * rounds / most, {**common, "rounds": rounds, "conf": conf})
    order = sorted(found, key=lambda name: name.startswith("scaling/"))  # the least urgent
    return {name: found[name] for name in order if chosen(name, options.only)}


def chosen(name: str, only: Sequence[str]) -> bool:
    """Return whether a case or its section is named; without names all but the tiny case are chosen."""
    return name in only or (not name.endswith("/tiny") and (not only or name.split("/")[0] in only))


def in_scratch(command: Callable[[Path, int], dict[str, Any]], rounds: int) -> dict[str, Any]:
    """Measure a command in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="txl-bench-") as scratch:
        return command(Path(scratch), rounds)


def expected_minutes(task: Task, record: Mapping[str, Any] | None) -> float:
    """Return the time of the last measurement, for as many rounds, or else the usual one."""
    if record is None:
        return task.minutes
    return float(record["minutes"]) * (task.identity["rounds"] + WARMUP) / (record["identity"]["rounds"] + WARMUP)


def plan(left: Mapping[str, Task], records: Mapping[str, Any]) -> list[str]:
    """Return a line for each case that is left, and their total."""
    minutes = {name: expected_minutes(task, records.get(name)) for name, task in left.items()}
    lines = [f"{name:30} {taken:5.1f} min" for name, taken in minutes.items()]
    return [*lines, f"{len(left)} cases, about {sum(minutes.values()):.0f} minutes on an idle machine"]


def measure_all(
    left: Mapping[str, Task], records: dict[str, Any], path: Path, budget: float | None
) -> tuple[list[str], dict[str, str]]:
    """Measure the cases that are left, each in a process of its own, and keep each result.

    Returns:
        The names of the cases that did not fit the budget, and the errors of those that failed.
    """
    begun, late = time.monotonic(), []

    def start(task: Task, slot: int) -> JobProcess:
        expected, used = expected_minutes(task, records.get(task.name)), (time.monotonic() - begun) / 60
        if budget is not None and used + expected > budget:
            late.append(task.name)
            raise UserError("no time left")
        return JobProcess(task.measure)

    def end(task: Task, ended: Ended) -> str | None:
        if ended.value is None:
            return ended.problem
        today, minutes = datetime.date.today().isoformat(), round(ended.seconds / 60, 2)
        records[task.name] = {"identity": task.identity, "date": today, "minutes": minutes, **ended.value}
        write_json(path, records)
        return None

    jobs = Jobs(list(left.values()), start, end)
    progress = Progress(jobs, lambda task: 60 * expected_minutes(task, records.get(task.name)))
    jobs.show = progress.show
    try:
        jobs.run()
    finally:
        progress.close()
    return late, {name: error for name, error in jobs.failed.items() if name not in late}


def write_page(records: Mapping[str, Any], page: Path) -> None:
    """Write every section that has records."""
    for name in SECTIONS:
        if text := section(name, records):
            write_section(page, name, text)
            print(f"{text}\n", flush=True)


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    description = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser("python -m benchmarks.bench", description=description, allow_abbrev=False)
    add = parser.add_argument
    names = ", ".join(dict.fromkeys(name.split("/")[0] for name in [*comparisons(), *COMMANDS]))
    add("--only", type=_names, default=[], metavar="NAME,…", help=f"sections ({names}) or cases such as training/small")
    add("--rounds", type=_at_least_one, default=ROUNDS, help="most rounds of a case, after one to warm up")
    add("--plan", action="store_true", help="show what is left and how long it takes, and measure nothing")
    add("--budget", type=float, metavar="MINUTES", help="start no case that would end later")
    add("--again", action="store_true", help="measure finished cases again")
    add("--no-huggingface", dest="huggingface", action="store_false", help="measure this project only")
    add("--threads", type=_at_least_one, default=2)
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--markdown", type=Path, help="file whose sections are rewritten; default: BENCHMARKS.md, or beside --results")
    add("--results", type=Path, help="file that keeps the results; default: benchmarks/results/DEVICE.json")
    return parser


def _names(text: str) -> list[str]:
    known = {part for name in [*comparisons(), *COMMANDS] for part in (name, name.split("/")[0])}
    for name in text.split(","):
        if name not in known:
            raise argparse.ArgumentTypeError(f"{name!r}: must be of {', '.join(sorted(known))}")
    return text.split(",")


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: must be an integer >= 1")
    return int(text)


def main() -> int:
    """Measure what is left, keep it and write the page.

    Returns:
        Exit status: 1 if cases failed, 2 if an environment is missing, 3 if the budget left cases.
    """
    parser = arguments()
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU")
    path = options.results or RESULTS / f"{options.device}.json"
    is_main = options.results is None and options.device == "cpu"
    page = options.markdown or (PAGE if is_main else path.with_suffix(".md"))
    records = json.loads(path.read_text()) if path.exists() else {}
    left = {
        name: task
        for name, task in tasks(options).items()
        if options.again or records.get(name, {}).get("identity") != task.identity
    }
    if options.plan:
        print("\n".join(plan(left, records)))
        return 0
    turns = [turn for task in left.values() for turn in task.identity.get("turns", ())]
    if any(turn.startswith("huggingface") for turn in turns) and not TRANSFORMERS.exists():
        print(f"bench: {TRANSFORMERS} is missing; `make bench` builds it", file=sys.stderr)
        return 2
    path.parent.mkdir(parents=True, exist_ok=True)
    late, failed = measure_all(left, records, path, options.budget)
    write_page(records, page)
    for name, error in failed.items():
        print(f"bench: {name} {error}; its error is above", file=sys.stderr)
    if late:
        print(f"bench: left for the next call (--budget {options.budget:g}): {', '.join(late)}", file=sys.stderr)
    return 1 if failed else 3 if late else 0


if __name__ == "__main__":
    # Forked jobs import this module by its name, never as `__main__`.
    from benchmarks.bench import main as main_by_name

    sys.exit(main_by_name())
