"""Errors that a user can act on: one line with the option, its value and what is allowed."""

from __future__ import annotations

import math
import os
import sys
from functools import cache
from pathlib import Path


class UserError(Exception):
    """Error in an option, file or checkpoint, with a message of one line; not a bug of the program."""


class Stopped(UserError):  # noqa: N818 - not an error of the run
    """Raised where a signal ended a run; the message names the checkpoint, if one was written.

    Attributes:
        signum: number of the signal.
    """

    def __init__(self, text: str, signum: int) -> None:
        super().__init__(text, signum)
        self.signum = signum

    def __str__(self) -> str:
        return str(self.args[0])


class OptionError(UserError, ValueError):
    """Error of an option whose value is not allowed.

    Attributes:
        option: dotted name as typed on the command line, or the field name in Python.
        value: given value.
        allowed: allowed values, in words.
    """

    def __init__(self, option: str, value: object, allowed: str) -> None:
        self.option, self.value, self.allowed = option, value, allowed
        super().__init__(f"{option}={value}: {allowed}")

    def __reduce__(self) -> tuple[type, tuple[str, object, str]]:
        # Pickled when a job of a multirun sends its error to the parent process.
        return type(self), (self.option, self.value, self.allowed)

    def within(self, group: str) -> OptionError:
        """Return the same error with the option's group: `mem_len` becomes `memory.mem_len`."""
        return OptionError(f"{group}.{self.option}", self.value, self.allowed)


class CheckpointError(UserError, ValueError):
    """A checkpoint that does not hold what it should, or a model that another format cannot hold."""


def require(condition: bool, option: str, value: object, allowed: str) -> None:
    """Raise `OptionError(option, value, allowed)` unless `condition` holds."""
    if not condition:
        raise OptionError(option, value, allowed)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its type if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def cores() -> int:
    """Return the number of CPU cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def memory_of_machine() -> int:
    """Return the bytes of memory that this process may have, of the machine or of its control group."""
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else ""
    has = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(has, int(text)) if text.isdecimal() else has


def require_memory(n_bytes: int, option: str, value: object) -> None:
    """Raise `OptionError` if what an option asks for is larger than the memory of this machine."""
    has = memory_of_machine()
    allowed = f"needs at least {n_bytes / 1e9:,.0f} GB of memory, and this machine has {has / 1e9:,.0f} GB"
    require(n_bytes <= has, option, value, allowed)


# Limits of machines: beyond these a command would wait for hours, or end in an error of a library.
MOST = {
    "num_threads": max(64, os.cpu_count() or 1),
    "threads": max(64, os.cpu_count() or 1),
    "jobs": 10_000,
    "contexts": 100_000,
    "bootstrap": 100_000,
    "n_samples": 100_000,
    "gradient_segments": 1_000,
}


def check_count(option: str, value: int | None, least: int = 1) -> None:
    """Raise `OptionError` unless a value is null or an integer from `least` to what machines can do (`MOST`)."""
    most = MOST.get(option.rpartition(".")[2], math.inf)
    require(value is None or value >= least, option, value, f"must be an integer >= {least}")
    require(value is None or value <= most, option, value, f"must be at most {most:,}")


@cache
def notice(line: str) -> None:
    """Print a line on stderr, once in a process, and of several ranks on the first one."""
    if os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0":
        print(line, file=sys.stderr, flush=True)
