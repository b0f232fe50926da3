"""Settings of one reproduction: its command line, and how many jobs it runs at once."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from experiments.engine.profiles import PROFILES, Profile
from txl_lightning.errors import UserError
from txl_lightning.reporting.machine import cores

MAX_DEFAULT_PARALLEL = 8


@dataclass(frozen=True)
class Setup:
    """Settings of one reproduction.

    Args:
        profile: sizes, seeds and estimates.
        overrides: the user's, appended to every `txl train`.
        directory: folder of everything it writes.
        planning: only print a plan: nothing is written, and a corpus may be missing.
        sections: names of the chosen sections, in the report's order.
        parallel: jobs that run at once; None for `default_parallel`.
        logger: wandb, csv or none.
        prefix: words in front of every job's command, such as `srun --nodes 2`.
        command: command line that makes the same report.
    """

    profile: Profile
    overrides: tuple[str, ...]
    directory: Path
    planning: bool = False
    sections: tuple[str, ...] = ()
    parallel: int | None = None
    logger: str = "wandb"
    prefix: tuple[str, ...] = ()
    command: str = ""

    @property
    def runs(self) -> Path:
        """Folder of all runs."""
        return self.directory / "runs"

    @property
    def figures(self) -> Path:
        """Folder of the report's figures."""
        return self.directory / "figures"


def default_parallel(profile: Profile) -> int:
    """Return how many jobs run at once: one for each core, or for each GPU that a job does not share."""
    if profile.accelerator == "gpu":
        return max(1, len(_visible_gpus()) // profile.devices)
    return min(MAX_DEFAULT_PARALLEL, cores())


def make_slots(profile: Profile, parallel: int) -> list[dict[str, str]]:
    """Return the environment variables of each job slot: on GPUs, each slot has GPUs of its own.

    Raises:
        UserError: there are too few GPUs.
    """
    if profile.accelerator != "gpu" or parallel == 1:
        return [{} for _ in range(parallel)]
    n, found = profile.devices, _visible_gpus()
    if parallel * n > len(found):
        raise UserError(f"--parallel {parallel}: needs {parallel * n} GPUs, {len(found)} are visible")
    return [{"CUDA_VISIBLE_DEVICES": ",".join(found[i * n : (i + 1) * n])} for i in range(parallel)]


def _visible_gpus() -> list[str]:
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [name for name in given.split(",") if name] if given else [str(i) for i in range(torch.cuda.device_count())]


def parse(
    words: list[str] | None, sections: Sequence[str], description: str | None, on_request: Sequence[str] = ()
) -> Setup:
    """Return the settings that a command line asks for; exit with status 2 and one line on bad input.

    Args:
        words: the command line; None for that of this process.
        sections: names that `--only` may choose from.
        description: first paragraph of the help text.
        on_request: sections that are made only if `--only` names them.
    """
    parser = _parser(sections, description, on_request)
    options = parser.parse_intermixed_args(words)
    overrides = [word for word in options.overrides if not word.startswith("profile=")]
    for word in options.overrides:
        if word.startswith("profile="):
            options.profile = word.partition("=")[2]
            if options.profile not in PROFILES:
                parser.error(f"{word}: must be one of {', '.join(PROFILES)}")
    if options.parallel is not None and options.parallel < 1:
        parser.error(f"--parallel {options.parallel}: must be an integer >= 1")
    by_default = tuple(name for name in sections if name not in on_request)
    chosen = by_default if options.only is None else tuple(dict.fromkeys(options.only.split(",")))
    if unknown := [name for name in chosen if name not in sections]:
        parser.error(f"--only {','.join(unknown)}: must be of {', '.join(sections)}")
    try:
        prefix = tuple(shlex.split(options.prefix))
    except ValueError as error:
        parser.error(f"--prefix {options.prefix}: {error}")
    return Setup(
        profile=PROFILES[options.profile],
        overrides=tuple(overrides),
        directory=(options.directory or Path("reports") / options.profile).resolve(),
        planning=options.plan,
        sections=tuple(chosen),
        parallel=options.parallel,
        logger=options.logger,
        prefix=prefix,
        command=_command(options, overrides),
    )


def _parser(sections: Sequence[str], description: str | None, on_request: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m experiments.reproduce", description=description)
    parser.add_argument("--profile", choices=PROFILES, default="laptop", help="sizes and lengths; also as profile=NAME")
    parser.add_argument("--plan", action="store_true", help="print all jobs and their estimated time, run nothing")
    only = f"sections to make, with commas: {','.join(sections)}; default: all but {','.join(on_request) or 'none'}"
    parser.add_argument("--only", default=None, help=only)
    parser.add_argument("--directory", type=Path, default=None, help="default: reports/PROFILE")
    parser.add_argument("--parallel", type=int, default=None, help="jobs at once; default: one for each core or GPU")
    parser.add_argument("--logger", choices=("wandb", "csv", "none"), default="wandb", help="wandb writes offline")
    parser.add_argument("--prefix", default="", help="words before every job's command, such as 'srun --nodes 2'")
    parser.add_argument("overrides", nargs="*", help="appended to every txl train, such as data=file data.path=…")
    return parser


def _command(options: argparse.Namespace, overrides: list[str]) -> str:
    words = ["make", "reproduce"] + ([] if options.profile == "laptop" else [f"PROFILE={options.profile}"])
    arguments = [] if options.only is None else [f"--only={options.only}"]
    arguments += [] if options.logger == "wandb" else [f"--logger={options.logger}"]
    arguments += overrides
    return shlex.join(words) + (f" ARGS={shlex.quote(shlex.join(arguments))}" if arguments else "")
