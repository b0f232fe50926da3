"""Reproduce the paper: `python -m experiments.reproduce` (or `make reproduce`).

Plan the trainings and measurements that the tables and figures need, run what is not finished, several jobs at once,
and write `report.html`, `report.md` and `results.json` while they run. The same command continues a stopped one.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import psutil
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from experiments.arms import check_overrides
from experiments.engine.jobs import Job, Outcomes, composed, composed_options
from experiments.engine.plan import Plan, make_plan, plan_table
from experiments.engine.profiles import PROFILES, Setup
from experiments.report.pages import write_report
from experiments.report.results import Effort, assemble, effort_before
from experiments.tables import (
    figures_5_to_7,
    main_results,
    table_6,
    table_7,
    table_8,
    table_9,
    table_10,
)
from txl_lightning.application import one_line
from txl_lightning.errors import UserError
from txl_lightning.files import locked
from txl_lightning.multirun import shared_precision
from txl_lightning.training.checks import check_config

SECTIONS: dict[str, ModuleType] = {
    "main_results": main_results,
    "table_6": table_6,
    "table_7": table_7,
    "table_8": table_8,
    "table_9": table_9,
    "table_10": table_10,
    "figures_5_to_7": figures_5_to_7,
}
"""Sections of the report; each is a file, such as experiments/tables/table_6.py, with `jobs` and `section`."""
SECONDS_BETWEEN_REPORTS = 30.0


def main(words: list[str] | None = None, started: float | None = None) -> int:
    """Run the command line and return its exit status: 2 with one message on bad input or a failed job.

    Args:
        words: the command line; None for `sys.argv`.
        started: `time.monotonic()` when the command began; None for now.
    """
    if started is None:
        started = time.monotonic()
    setup = parse(words)
    try:
        reproduce(setup, started)
    except (UserError, HydraException, OmegaConfBaseException, OSError) as error:
        print(f"reproduce: {one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        continues = f"the same command continues from here: {setup.command}"
        print(f"reproduce: stopped; {continues}", file=sys.stderr)
        return 130
    return 0


def parse(words: list[str] | None = None) -> Setup:
    """Return the settings that a command line asks for; exit with status 2 and one line on bad input.

    Args:
        words: the command line; None for this process's.
    """
    if words is None:
        words = sys.argv[1:]
    parser = argparse.ArgumentParser(prog="python -m experiments.reproduce", description=__doc__)
    add = parser.add_argument
    add("--profile", choices=PROFILES, default="laptop", help="sizes and lengths")
    add("--plan", action="store_true", help="print all jobs and their estimated time, run nothing")
    add("--only", default=",".join(SECTIONS), help="sections to make, with commas: %(default)s")
    add("--directory", type=Path, help="default: reports/PROFILE")
    add("--parallel", type=int, help="jobs at once; default: one for each core, one on a GPU")
    add(
        "--logger",
        choices=("wandb", "csv", "none"),
        default="wandb",
        help="wandb writes offline",
    )
    add("overrides", nargs="*", help="appended to every txl train, such as data.path=…")
    options = parser.parse_intermixed_args(words)
    if options.parallel is not None and options.parallel < 1:
        parser.error(f"--parallel {options.parallel}: must be an integer >= 1")
    sections = tuple(options.only.split(","))
    if not SECTIONS.keys() >= set(sections):
        parser.error(f"--only {options.only}: may contain only {', '.join(SECTIONS)}")
    directory = options.directory or Path("reports") / options.profile
    return Setup(
        profile=PROFILES[options.profile],
        overrides=tuple(options.overrides),
        directory=directory.resolve(),
        planning=options.plan,
        sections=sections,
        parallel=options.parallel,
        logger=options.logger,
        command=shlex.join([*parser.prog.split(), *words]),
    )


def reproduce(setup: Setup, started: float) -> None:
    """Plan, run and report; with `--plan`, print the plan only.

    Args:
        setup: settings.
        started: when the command began, on the monotonic clock.
    """
    check_overrides(setup.overrides)
    if setup.planning:
        print(plan_table(setup, plan_jobs(setup)))
        return
    with locked(setup.directory):
        setup = in_one_precision(setup)
        plan = prepare(setup)
        print(plan.summary(), file=sys.stderr)
        run(plan, started)
    print(f"report: {setup.directory / 'report.html'}", flush=True)


def in_one_precision(setup: Setup) -> Setup:
    """Replace `trainer.precision=auto` by the choice that this directory keeps for all jobs."""
    say(f"options of profile {setup.profile.name}, and the precision of this machine")
    if setup.config.trainer.precision != "auto":
        return setup
    precision = shared_precision(setup.directory, composed_options(setup.words))
    return replace(setup, overrides=(*setup.overrides, f"trainer.precision={precision}"))


def prepare(setup: Setup) -> Plan:
    """Plan all jobs and check every training before the first one starts."""
    say("text, the first time fetched and encoded; options and code that each job depends on")
    plan = make_plan(setup, plan_jobs(setup))
    say("checks of every training")
    for job in plan.jobs:
        if job.command == "train":
            check_config(composed(job.overrides_in(setup.runs)))
    return plan


def plan_jobs(setup: Setup) -> list[Job]:
    """Return the jobs that the chosen sections need in the order in which they run, each once."""
    jobs = {}
    for section in setup.sections:
        for job in SECTIONS[section].jobs(setup):
            jobs[job.name] = job
    return list(jobs.values())


def say(step: str) -> None:
    """Print what the command does before its first job."""
    print(
        f"preparing: {step}",
        file=sys.stderr,
        flush=True,
    )


def run(plan: Plan, started: float) -> None:
    """Run the jobs that are not finished; write the report every 30 seconds while they run, and at the end.

    Raises:
        UserError: jobs failed.
        KeyboardInterrupt: the jobs were stopped.
    """
    directory = plan.setup.directory
    before = effort_before(directory, plan.finished())
    if len(plan.finished()) == len(plan.jobs):
        report(plan, before)
        return
    last_report = 0.0

    def effort() -> Effort:
        return Effort(before.seconds + time.monotonic() - started, before.calls + 1)

    def report_now_and_then() -> None:
        nonlocal last_report
        if time.monotonic() > last_report + SECONDS_BETWEEN_REPORTS:
            report(plan, effort())
            last_report = time.monotonic()

    print(
        f"report while it runs: {directory / 'report.html'}",
        file=sys.stderr,
        flush=True,
    )
    try:
        plan.run(report_now_and_then)
    finally:
        report(plan, effort())


def report(plan: Plan, effort: Effort) -> None:
    """Write the report with all finished jobs."""
    setup = plan.setup
    finished = frozenset(plan.finished())
    outcomes = Outcomes(
        setup.runs,
        setup.figures,
        tuple(plan.jobs),
        finished,
    )
    sections = [SECTIONS[name].section(setup, outcomes) for name in setup.sections]
    write_report(assemble(plan, outcomes, sections, effort), setup.directory)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, also while no job runs
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # since the imports
        signal.signal(signal.SIGINT, signal.default_int_handler)
    seconds_of_imports = time.time() - psutil.Process().create_time()
    sys.exit(main(started=time.monotonic() - seconds_of_imports))
