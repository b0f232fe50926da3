"""Reproduce the paper: `python -m experiments.reproduce` (or `make reproduce`).

Plan the trainings and measurements that the tables and figures need, run what is not finished, several jobs at once,
and write `report.html`, `report.md` and `results.json` whenever one is finished. After an interruption the same command
continues.
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

from experiments.arms import OFF, ON, check_overrides
from experiments.engine.jobs import Job, Outcomes, Pending, chosen_precision, composed, corpus_checksum
from experiments.engine.plan import Plan, make_plan
from experiments.engine.profiles import PROFILES, Setup
from experiments.engine.progress import Progress
from experiments.report.pages import assemble, write_report
from experiments.sections import Section
from experiments.tables import figures_5_to_7, main_results, table_6, table_7, table_8, table_9, table_10
from txl_lightning.application import one_line
from txl_lightning.errors import UserError
from txl_lightning.files import locked
from txl_lightning.job_folder import JobFolder
from txl_lightning.training.checks import check_config

MODULES = (main_results, table_6, table_7, table_8, table_9, table_10, figures_5_to_7)
SECTIONS: dict[str, ModuleType] = {module.__name__.rpartition(".")[2]: module for module in MODULES}
ORDER = ("table_10", "table_6", "table_7", "table_8", "table_9", "figures_5_to_7")  # of the claims, after ON and OFF
SECONDS_BETWEEN_REPORTS = 30.0


def main(words: list[str] | None = None, started: float | None = None) -> int:
    """Run the command line and return its exit status: 2 with one message on bad input or a failed job.

    Args:
        words: the command line; None for the one of this process.
        started: value of `time.monotonic()` when the command began; None for now.
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
        print(f"reproduce: stopped; the same command continues from here: {setup.command}", file=sys.stderr)
        return 130
    return 0


def parse(words: list[str] | None = None) -> Setup:
    """Return the settings that a command line asks for; exit with status 2 and one line on bad input.

    Args:
        words: the command line; None for that of this process.
    """
    parser = argparse.ArgumentParser(prog="python -m experiments.reproduce", description=__doc__)
    add = parser.add_argument
    add("--profile", choices=PROFILES, default="laptop", help="sizes and lengths")
    add("--plan", action="store_true", help="print all jobs and their estimated time, run nothing")
    add("--only", default=",".join(SECTIONS), help="sections to make, with commas: %(default)s")
    add("--directory", type=Path, help="default: reports/PROFILE")
    add("--parallel", type=int, help="jobs at once; default: one for each core or GPU")
    add("--logger", choices=("wandb", "csv", "none"), default="wandb", help="wandb writes offline")
    add("--prefix", default=(), type=shlex.split, help="words before every job's command, such as 'srun --nodes 2'")
    add("overrides", nargs="*", help="appended to every txl train, such as data=file data.path=…")
    options = parser.parse_intermixed_args(words)
    if options.parallel is not None and options.parallel < 1:
        parser.error(f"--parallel {options.parallel}: must be an integer >= 1")
    sections = dict.fromkeys(options.only.split(","))
    if not sections.keys() <= SECTIONS.keys():
        parser.error(f"--only {options.only}: must be of {', '.join(SECTIONS)}")
    given = {name: getattr(options, name) for name in ("only", "directory", "parallel", "logger")}
    given["prefix"] = shlex.join(options.prefix)
    arguments = [f"--{name}={value}" for name, value in given.items() if value and value != parser.get_default(name)]
    command = f"make reproduce PROFILE={options.profile}"
    if arguments or options.overrides:
        command += f" ARGS={shlex.quote(shlex.join([*arguments, *options.overrides]))}"
    return Setup(
        profile=PROFILES[options.profile],
        overrides=tuple(options.overrides),
        directory=(options.directory or Path("reports") / options.profile).resolve(),
        planning=options.plan,
        sections=tuple(sections),
        parallel=options.parallel,
        logger=options.logger,
        prefix=tuple(options.prefix),
        command=command,
    )


def reproduce(setup: Setup, started: float) -> None:
    """Plan, run and report; with `--plan`, print the plan only. `started` is the command's, on the monotonic clock."""
    check_overrides(setup.overrides)
    if setup.planning:
        print(plan(setup).table())
        return
    with locked(setup.directory):
        planned = plan(setup)
        say("checks of every training")
        for job in planned.jobs:
            if job.command == "train":
                check_config(composed(job.overrides_in(setup.runs)))
        print(planned.summary(), file=sys.stderr, flush=True)
        run(planned, started)
    publish(setup)
    print(f"report: {setup.directory / 'report.html'}", flush=True)


def say(what: str) -> None:
    """Print what the command does before its first job."""
    print(f"preparing: {what}", file=sys.stderr, flush=True)


def plan(setup: Setup) -> Plan:
    """Plan the jobs of the chosen sections, all in one precision."""
    say(f"profile {setup.profile.name}: options, and the precision of this machine")
    precision = chosen_precision((f"profile={setup.profile.name}", *setup.overrides), setup.directory, setup.planning)
    setup = replace(setup, overrides=(*setup.overrides, *precision))
    say(f"corpus {setup.config.data.name}: read; the first time it is fetched and encoded, a minute or two")
    corpus_checksum(setup.config.data, setup.planning)
    jobs = {}
    for name in setup.sections:
        say(f"jobs of {name}{', the first time its text too' * (name == 'table_7')}")
        jobs[name] = SECTIONS[name].jobs(setup)
    say("options, code and text that each job depends on")
    return make_plan(setup, jobs, priority)


def priority(job: Job) -> tuple[int, ...]:
    """Return the rank of a training: first those with and without recurrence, seed by seed; then in order of claims."""
    if job.arm in (ON.title, OFF.title):
        return (0, job.seed or 0)
    return (1, min((ORDER.index(name) for name in job.sections if name in ORDER), default=len(ORDER)))


def run(plan: Plan, started: float) -> None:
    """Run the jobs that are not finished; write the report every 30 seconds while they run, and at the end.

    The report's wall-clock time counts from
    `started`, so that it includes imports, preparation and the checks of every training.

    Raises:
        UserError: jobs failed, a result cannot be read, or the report cannot be written.
        KeyboardInterrupt: the jobs were stopped.
    """
    last_report = 0.0
    wall_seconds = seconds_before(plan)
    began_finished = len(plan.finished) == len(plan.jobs)

    def show(progress: Progress) -> None:
        nonlocal last_report
        now = time.monotonic()
        done = progress.jobs.done
        if len(done) < len(plan.jobs) and now > last_report + SECONDS_BETWEEN_REPORTS:
            report(plan, done, wall_seconds + now - started, progress)
            last_report = time.monotonic()

    print(f"report while it runs: {plan.setup.directory / 'report.html'}", file=sys.stderr, flush=True)
    try:
        plan.run(show)
    finally:
        if not began_finished:
            wall_seconds += time.monotonic() - started
        report(plan, {job.name for job in plan.finished}, wall_seconds)


def seconds_before(plan: Plan) -> float:
    """Return the wall-clock seconds of earlier calls, by their report; 0 if that was finished and jobs run again."""
    results = JobFolder(plan.setup.directory, "results.json").record
    runs_again = results.get("finished") and len(plan.finished) < len(plan.jobs)
    if runs_again or not plan.finished:
        return 0.0
    return float(results["seconds"]["wall"])


def report(plan: Plan, done: set[str], wall_seconds: float, progress: Progress | None = None) -> None:
    """Write the report of the jobs that are finished, by their names; `progress` is of those that run."""
    setup = plan.setup
    outcomes = Outcomes(setup.runs, setup.figures, tuple(plan.jobs), frozenset(done))
    sections = [section(SECTIONS[name], name, setup, outcomes) for name in setup.sections]
    write_report(assemble(plan, outcomes, sections, wall_seconds, progress), setup.directory)


def section(module: ModuleType, name: str, setup: Setup, outcomes: Outcomes) -> Section:
    """Return a section; one whose results are not there yet says so."""
    try:
        return module.section(setup, outcomes)
    except Pending as pending:
        return Section(name, module.TITLE, f"pending: {pending}")


def publish(setup: Setup) -> None:
    """Log the report as an artifact of its own W&B run, with `--logger wandb`."""
    if setup.logger != "wandb":
        return
    import wandb

    from txl_lightning.config.schemas import LoggerConfig
    from txl_lightning.reporting.wandb_panels import start_run

    config = LoggerConfig(name="wandb", group="report", tags=[setup.profile.name])
    logged = start_run(setup.directory, config, "report", {"profile": setup.profile.name})
    artifact = wandb.Artifact(f"report-{setup.profile.name}", type="report")
    for name in ("report.html", "report.md", "results.json"):
        artifact.add_file(str(setup.directory / name), name=name)
    logged.log_artifact(artifact)
    logged.finish()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, also while no job runs
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # since the imports
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Forked jobs import this module by its name, never as `__main__`.
    from experiments.reproduce import main as main_by_name

    seconds_of_imports = time.time() - psutil.Process().create_time()
    sys.exit(main_by_name(started=time.monotonic() - seconds_of_imports))
