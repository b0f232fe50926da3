"""Reproduce the paper: `python -m experiments.reproduce` (or `make reproduce`).

Plan the trainings and measurements that the tables and figures need, run what is not finished, several jobs at once,
and write `report.html`, `report.md` and `results.json`, with what there is also while jobs run. After an interruption
the same command continues.
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
from typing import Any

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from experiments.claims import CLAIMS
from experiments.engine.jobs import Job, chosen_precision, composed
from experiments.engine.plan import SECONDS_TO_SAVE, Plan, Stopwatch, make_plan
from experiments.engine.profiles import PROFILES, Setup
from experiments.live import LiveReport
from experiments.tables import (
    appendix_e,
    beyond,
    figures_5_to_7,
    main_results,
    prose,
    regime,
    table_6,
    table_7,
    table_8,
    table_9,
    table_10,
)
from experiments.tables.arms import check_overrides
from experiments.tables.length_sweep import OFF, ON
from txl_lightning.command_line.caches import usable_caches
from txl_lightning.command_line.messages import one_line
from txl_lightning.config.schemas import Config
from txl_lightning.errors import UserError
from txl_lightning.jobs.folder import JobFolder
from txl_lightning.jobs.processes import clock
from txl_lightning.training.checks import check_config

SECTIONS: dict[str, ModuleType] = {
    "main_results": main_results,
    "table_6": table_6,
    "table_7": table_7,
    "table_8": table_8,
    "table_9": table_9,
    "table_10": table_10,
    "figures_5_to_7": figures_5_to_7,
    "appendix_e": appendix_e,
    "regime": regime,
    "prose": prose,
    "beyond": beyond,
}
ON_REQUEST = ("beyond",)  # made only if --only names them: the default run has no time for them
PAIR = (ON.title, OFF.title)
CLAIMS_OF_PAIR = ("recurrence_helps", "recurrence_helps_at_the_best_lengths")
SECONDS_TO_END = SECONDS_TO_SAVE + 15.0  # kept of the time of `--minutes`, to end the jobs and write the report


def main(words: list[str] | None = None) -> int:
    """Run the command line and return its exit status: 2 with one message on bad input or a failed job."""
    setup = parse(words)
    try:
        with usable_caches():
            reproduce(setup)
    except UserError as error:
        print(f"reproduce: {error}", file=sys.stderr)
        return 2
    except (HydraException, OmegaConfBaseException, OSError) as error:
        print(f"reproduce: {one_line(error, Config)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"reproduce: stopped; the same command continues from here: {setup.again}", file=sys.stderr)
        return 130
    return 0


def parse(words: list[str] | None = None) -> Setup:
    """Return the settings that a command line asks for; exit with status 2 and one line on bad input.

    Args:
        words: the command line; None for that of this process.
    """
    parser = argparse.ArgumentParser(prog="python -m experiments.reproduce", description=__doc__)
    parser.add_argument("--profile", choices=PROFILES, default="laptop", help="sizes and lengths; also as profile=NAME")
    parser.add_argument("--plan", action="store_true", help="print all jobs and their estimated time, run nothing")
    only = f"sections to make, with commas: {','.join(SECTIONS)}; default: all but {','.join(ON_REQUEST)}"
    parser.add_argument("--only", default=None, help=only)
    parser.add_argument("--directory", type=Path, default=None, help="default: reports/PROFILE")
    parser.add_argument("--parallel", type=int, default=None, help="jobs at once; default: one for each core or GPU")
    parser.add_argument("--minutes", type=float, default=None, help="stop in time; the same command continues")
    parser.add_argument("--logger", choices=("wandb", "csv", "none"), default="wandb", help="wandb writes offline")
    parser.add_argument("--prefix", default="", help="words before every job's command, such as 'srun --nodes 2'")
    parser.add_argument("overrides", nargs="*", help="appended to every txl train, such as data=file data.path=…")
    options = parser.parse_intermixed_args(words)
    overrides = [word for word in options.overrides if not word.startswith("profile=")]
    for word in options.overrides:
        if word.startswith("profile="):
            options.profile = word.partition("=")[2]
            if options.profile not in PROFILES:
                parser.error(f"{word}: must be one of {', '.join(PROFILES)}")
    if options.parallel is not None and options.parallel < 1:
        parser.error(f"--parallel {options.parallel}: must be an integer >= 1")
    if options.minutes is not None and not 0 < options.minutes < float("inf"):
        parser.error(f"--minutes {options.minutes:g}: must be a number > 0")
    sections = [name for name in SECTIONS if name not in ON_REQUEST]
    if options.only is not None:
        sections = list(dict.fromkeys(options.only.split(",")))
    if unknown := [name for name in sections if name not in SECTIONS]:
        parser.error(f"--only {','.join(unknown)}: must be of {', '.join(SECTIONS)}")
    try:
        prefix = tuple(shlex.split(options.prefix))
    except ValueError as error:
        parser.error(f"--prefix {options.prefix}: {error}")
    arguments = [] if options.only is None else [f"--only={options.only}"]
    arguments += [] if options.logger == "wandb" else [f"--logger={options.logger}"]
    here = {name: getattr(options, name) for name in ("directory", "parallel", "prefix")}
    places = [f"--{name}={value}" for name, value in here.items() if value]

    def command(*words: str) -> str:
        profile = "" if options.profile == "laptop" else f" PROFILE={options.profile}"
        return f"make reproduce{profile}" + (f" ARGS={shlex.quote(shlex.join(words))}" if words else "")

    return Setup(
        profile=PROFILES[options.profile],
        overrides=tuple(overrides),
        directory=(options.directory or Path("reports") / options.profile).resolve(),
        planning=options.plan,
        sections=tuple(sections),
        parallel=options.parallel,
        logger=options.logger,
        prefix=prefix,
        command=command(*arguments, *overrides),
        again=command(*arguments, *places, *overrides),
        minutes=options.minutes,
    )


def reproduce(setup: Setup) -> None:
    """Plan, run and report; with `--plan`, print the plan only."""
    until = None if setup.minutes is None else time.monotonic() + 60 * setup.minutes - SECONDS_TO_END
    check_overrides(setup.overrides)
    if setup.planning:
        print(plan(setup).table())
        return
    page = setup.directory / "report.html"
    with JobFolder(setup.directory).locked():
        planned = plan(setup)
        check_trainings(planned)
        print(planned.summary(), file=sys.stderr, flush=True)
        results = run(planned, until)
    if results["finished"]:
        publish(setup, page)
    print(f"report: {page}")
    if state := results["progress"]:
        jobs = f"{state['jobs'] - state['finished']} of {state['jobs']} jobs"
        print(f"the time is over; left: {jobs}, about {clock(state['seconds_left'])}; continue with: {setup.again}")


def plan(setup: Setup) -> Plan:
    """Plan the jobs of the chosen sections, all in one precision."""
    precision = chosen_precision((f"profile={setup.profile.name}", *setup.overrides), setup.directory, setup.planning)
    setup = replace(setup, overrides=(*setup.overrides, *precision))
    return make_plan(setup, {name: SECTIONS[name].jobs(setup) for name in setup.sections}, priority)


def priority(job: Job) -> tuple[int, ...]:
    """Return the rank of a training: first those with and without recurrence, seed by seed; then in order of claims."""
    if job.arm in PAIR:
        return (0, job.seed or 0)
    sections = [claim.tables[-1].removesuffix("_differences") for claim in CLAIMS if claim.id not in CLAIMS_OF_PAIR]
    return (1, min((sections.index(name) for name in job.sections if name in sections), default=len(sections)))


def check_trainings(plan: Plan) -> None:
    """Validate the options of every training before the first one starts.

    Raises:
        OptionError: naming the option.
    """
    for job in plan.jobs:
        if job.command == "train":
            check_config(composed(job.overrides_in(plan.setup.runs)))


def run(plan: Plan, until: float | None = None) -> dict[str, Any]:
    """Run the jobs that are not finished, write the report meanwhile and at the end, and return its results.

    Args:
        plan: the jobs.
        until: time of `time.monotonic` at which jobs are stopped; None for no limit.

    Raises:
        UserError: jobs failed.
    """
    setup = plan.setup
    restart = JobFolder(setup.directory, "results.json").record.get("finished") and len(plan.finished) < len(plan.jobs)
    with Stopwatch(setup.directory / "clock.json", bool(restart)) as watch:
        report = LiveReport(plan, {name: SECTIONS[name] for name in setup.sections}, watch)
        print(f"report while it runs: {setup.directory / 'report.html'}", file=sys.stderr, flush=True)
        try:
            plan.run(report.tick, until)
        except (KeyboardInterrupt, UserError):
            report.finish()
            raise
        return report.finish()


def publish(setup: Setup, page: Path) -> None:
    """Log the report as an artifact of its own W&B run, with `--logger wandb`."""
    if setup.logger != "wandb":
        return
    from txl_lightning.config.schemas import LoggerConfig
    from txl_lightning.reporting.wandb_panels import log_files, wandb_run

    config = LoggerConfig(name="wandb", group="report", tags=[setup.profile.name])
    files = [page, *(page.with_name(name) for name in ("report.md", "results.json"))]
    with wandb_run(setup.directory, config, "report", {"profile": setup.profile.name}) as logged:
        log_files(logged, f"report-{setup.profile.name}", "report", files)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, also while no job runs
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # since the imports
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Forked jobs import this module by its name, never as `__main__`.
    from experiments.reproduce import main as main_by_name

    sys.exit(main_by_name())
