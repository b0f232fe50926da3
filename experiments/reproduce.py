"""The one command: `python -m experiments.reproduce` (or `make reproduce`).

It plans the training runs and measurements that the tables and figures need, each once, runs what has not been run,
side by side where there is room, and writes `report.html`, `report.md` and `results.json`. Called again, it goes on
where it was stopped.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import torch
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from experiments.claims.claims import judged
from experiments.engine.corpora import at_hand
from experiments.engine.estimate import Estimate, cores, plan_text
from experiments.engine.jobs import Job, composed, keys, merge
from experiments.engine.outcomes import Outcomes
from experiments.engine.profiles import PROFILES
from experiments.engine.progress import Progress
from experiments.engine.runner import Runner
from experiments.engine.setup import Setup
from experiments.engine.stopwatch import Stopwatch
from experiments.report.assemble import assemble
from experiments.report.rendering import write_report
from experiments.tables import appendix_e, figures_5_to_7, main_results, table_6, table_7, table_8, table_9, table_10
from experiments.tables.arms import check_overrides
from txl_lightning.data.corpora.corpus import load_corpus
from txl_lightning.errors import UserError
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
}
LOGGING = ("train", "evaluate", "recl", "attention", "speed")
MOST_AT_ONCE = 8


def main(words: list[str] | None = None) -> int:
    """Parse the command line, run, and print where the report is."""
    options = parse(words)
    try:
        return reproduce(options)
    except UserError as error:
        print(f"reproduce: {error}", file=sys.stderr)
        return 2
    except (HydraException, OmegaConfBaseException, OSError) as error:
        print(f"reproduce: {str(error).strip().splitlines()[0]}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("reproduce: stopped; the same command goes on from here", file=sys.stderr)
        return 130


def parse(words: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m experiments.reproduce", description=__doc__)
    parser.add_argument("--profile", choices=PROFILES, default="laptop", help="sizes and lengths; also as profile=NAME")
    parser.add_argument("--plan", action="store_true", help="print what would run and what it would cost, and stop")
    parser.add_argument("--only", default=None, help=f"some sections, with commas: {','.join(SECTIONS)}")
    parser.add_argument("--directory", type=Path, default=None, help="default: reports/PROFILE")
    parser.add_argument("--parallel", type=int, default=None, help="jobs side by side; default: a core or a GPU each")
    parser.add_argument("--logger", choices=("wandb", "csv", "none"), default="wandb", help="wandb writes offline")
    parser.add_argument("--prefix", default="", help="in front of every job's command, such as 'srun --nodes 2'")
    parser.add_argument("overrides", nargs="*", help="passed to every txl train, such as data=file data.path=…")
    options = parser.parse_intermixed_args(words)
    if options.parallel is not None and options.parallel < 1:
        parser.error(f"--parallel {options.parallel}: must be an integer >= 1")
    for word in [word for word in options.overrides if word.startswith("profile=")]:
        options.profile = word.partition("=")[2]
        options.overrides.remove(word)
        if options.profile not in PROFILES:
            parser.error(f"{word}: must be one of {', '.join(PROFILES)}")
    options.sections = list(SECTIONS) if options.only is None else list(dict.fromkeys(options.only.split(",")))
    try:
        shlex.split(options.prefix)
    except ValueError as error:
        parser.error(f"--prefix {options.prefix}: {error}")
    if unknown := [name for name in options.sections if name not in SECTIONS]:
        parser.error(f"--only {','.join(unknown)}: must be of {', '.join(SECTIONS)}")
    return options


def reproduce(options: argparse.Namespace) -> int:
    """Plan, run, and write the report."""
    profile = PROFILES[options.profile]
    directory = (options.directory or Path("reports") / profile.name).resolve()
    setup = Setup(profile, tuple(options.overrides), directory, planning=options.plan)
    check_overrides(setup.overrides)
    parallel = options.parallel or room(setup)
    if options.plan:
        jobs, runner = prepare(setup, parallel, options)
        print(plan_text(setup, jobs, runner, Estimate(profile, runner), parallel))
        return 0
    with only_one(directory):
        jobs, runner = prepare(setup, parallel, options)
        for job in jobs:
            if job.command == "train":
                check_config(composed(tuple(job.words(setup.runs)[1:])))
        print(opening(setup, jobs, runner, parallel), file=sys.stderr, flush=True)
        report = run(setup, jobs, runner, parallel, options)
    publish(setup, options.logger, report)
    print(f"report: {report}")
    return 0


def prepare(setup: Setup, parallel: int, options: argparse.Namespace) -> tuple[list[Job], Runner]:
    """All jobs of the chosen sections, and what runs them."""
    jobs = merge({name: SECTIONS[name].jobs(setup) for name in options.sections})
    return jobs, make_runner(setup, jobs, parallel, options)


def run(setup: Setup, jobs: list[Job], runner: Runner, parallel: int, options: argparse.Namespace) -> Path:
    """Run what is left, and write the report."""
    ended = setup.directory / "results.json"
    is_new = ended.exists() and not all(runner.is_finished(job) for job in jobs)
    with Stopwatch(setup.directory / "clock.json", is_new) as watch, terminated_as_interrupted():
        if is_new:
            ended.unlink()
        progress = Progress(jobs, Estimate(setup.profile, runner).seconds, min(parallel, cores()))

        def show(runner: Runner) -> None:
            progress(runner)
            watch.tick()

        runner.show = show
        try:
            runner.run(jobs)
        finally:
            progress.close()
        outcomes = Outcomes(setup.runs, setup.figures)
        sections = [SECTIONS[name].section(setup, outcomes) for name in options.sections]
        results = assemble(setup, jobs, runner, sections, command_line(options), watch)
    return write_report({**results, "claims": judged(results)}, setup.directory)


def opening(setup: Setup, jobs: list[Job], runner: Runner, parallel: int) -> str:
    """What is there and what will be done."""
    finished = [job for job in jobs if runner.is_finished(job)]
    stale = [job for job in jobs if job not in finished and runner.record(job).get("done")]
    again = f" ({len(stale)} more were made with other settings, code or text: they are run again)" if stale else ""
    return (
        f"profile {setup.profile.name}: {len(jobs)} jobs, {len(finished)} of them finished before{again}, "
        f"{parallel} side by side, into {os.path.relpath(setup.directory)}"
    )


def gpus() -> list[str]:
    """That this process may use."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [name for name in given.split(",") if name] if given else [str(i) for i in range(torch.cuda.device_count())]


def room(setup: Setup) -> int:
    """How many jobs run at once: one a GPU, or one a core, which suits small models best."""
    if setup.profile.accelerator == "gpu":
        return max(1, len(gpus()) // setup.profile.devices)
    return max(1, min(MOST_AT_ONCE, cores()))


def make_slots(setup: Setup, parallel: int) -> list[dict[str, str]]:
    """The environment of each of the jobs that run at once: a GPU or several of its own.

    Raises:
        UserError: there are too few GPUs.
    """
    devices, found = setup.profile.devices, gpus()
    if setup.profile.accelerator != "gpu" or parallel == 1:
        return [{} for _ in range(parallel)]
    if parallel * devices > len(found):
        raise UserError(f"--parallel {parallel}: needs {parallel * devices} GPUs, {len(found)} are visible")
    return [{"CUDA_VISIBLE_DEVICES": ",".join(found[i * devices : (i + 1) * devices])} for i in range(parallel)]


def make_runner(setup: Setup, jobs: list[Job], parallel: int, options: argparse.Namespace) -> Runner:
    """What runs the jobs, and knows which are finished."""
    corpora = {job.name: composed(tuple(job.words(setup.runs)[1:])).data for job in jobs if job.command == "train"}
    unknown = {name for name, data in corpora.items() if setup.planning and not at_hand(data)}
    checksums = {name: "" if name in unknown else load_corpus(data).checksum for name, data in corpora.items()}
    # One thread, however many jobs run at once: sums depend on how they are divided.
    each = 1 if setup.profile.accelerator == "cpu" else max(1, cores() // parallel)

    def beside(job: Job) -> list[str]:
        threads = cores() if job.alone else each
        words = [f"trainer.num_threads={threads}" if job.command == "train" else f"num_threads={threads}"]
        if options.logger != "wandb" or job.command not in LOGGING:
            return words + ([f"logger={options.logger}"] if job.command == "train" else [])
        tags = ",".join((setup.profile.name, *job.sections))
        return [*words, "logger=wandb", f"logger.group={job.sections[0]}", f"logger.tags=[{tags}]"]

    slots = [{}] if setup.planning else make_slots(setup, parallel)
    return Runner(setup.runs, keys(jobs, checksums), slots, beside, shlex.split(options.prefix))


def command_line(options: argparse.Namespace) -> str:
    """The command that makes the same report."""
    words = ["make", "reproduce"] + ([] if options.profile == "laptop" else [f"PROFILE={options.profile}"])
    behind = [] if options.only is None else [f"--only={options.only}"]
    behind += [] if options.logger == "wandb" else [f"--logger={options.logger}"]
    behind += options.overrides
    return shlex.join(words) + (f" ARGS={shlex.quote(shlex.join(behind))}" if behind else "")


def publish(setup: Setup, logger: str, report: Path) -> None:
    """The report as an artifact of a W&B run of its own."""
    if logger != "wandb":
        return
    from txl_lightning.config.schemas import LoggerConfig
    from txl_lightning.reporting.wandb_panels import log_files, wandb_run

    config = LoggerConfig(name="wandb", group="report", tags=[setup.profile.name])
    files = [report, *(report.with_name(name) for name in ("report.md", "results.json"))]
    with wandb_run(setup.directory, config, "report", {"profile": setup.profile.name}) as run:
        log_files(run, f"report-{setup.profile.name}", "report", files)


@contextmanager
def only_one(directory: Path) -> Iterator[None]:
    """Two reproductions cannot write into one directory at once.

    Raises:
        UserError: another one does.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(f"{directory}: another reproduction is writing there") from error
        yield


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM stops a reproduction as Ctrl-C does."""

    def stop(signum: int, frame: Any) -> NoReturn:
        raise KeyboardInterrupt

    # A shell that put this into the background had SIGINT ignored, and processes inherit that.
    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    # Jobs are forked from a process that imports this module under its name.
    from experiments.reproduce import main as main_by_name

    sys.exit(main_by_name())
