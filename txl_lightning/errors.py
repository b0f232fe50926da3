"""Errors that a user can act on: one line with the option, its value and what is allowed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any

RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID")  # variables of torchrun, Lightning and SLURM


class UserError(Exception):
    """Error in an option, file or checkpoint, with a one-line message; not a bug in the program."""


class Stopped(UserError):  # noqa: N818 - not an error of the run
    """Raised where a signal ended a run; the message names the checkpoint, if one was written.

    Attributes:
        signum: the signal's number.
    """

    def __init__(
        self, text: str, signum: int = 0
    ) -> None:  # absent when it is unpickled, which sets attributes
        super().__init__(text)
        self.signum = signum


class OptionError(UserError, ValueError):
    """Error for an option whose value is not allowed.

    Attributes:
        option: dotted name as typed on the command line, or the field name in Python.
        value: given value.
        allowed: allowed values, in words.
    """

    def __init__(self, option: str, value: object, allowed: str) -> None:
        super().__init__(option, value, allowed)  # with which it is unpickled
        self.option = option
        self.value = value
        self.allowed = allowed

    def __str__(self) -> str:
        return f"{self.option}={self.value}: {self.allowed}"

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
    return str(error).strip().partition("\n")[0] or type(error).__name__


def cores() -> int:
    """Return the number of CPU cores available to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def require_memory(n_bytes: int, option: str, value: object) -> None:
    """Raise `OptionError` if an option asks for more memory than this machine has."""
    import psutil  # RECL of arrays needs numpy alone

    has = psutil.virtual_memory().total
    needed = f"needs at least {n_bytes / 1e9:,.0f} GB of memory"
    allowed = f"{needed}, and this machine has {has / 1e9:,.0f} GB"
    require(n_bytes <= has, option, value, allowed)


# Whether the value of an option is allowed, and what is, in words.
Rule = tuple[Callable[[Any], bool], str]

COUNT: Rule = (
    lambda x: isinstance(x, int) and x >= 1,
    "must be an integer >= 1",
)
LENGTH: Rule = (lambda x: x >= 0, "must be an integer >= 0")
Count = Annotated[int, COUNT]
Length = Annotated[int, LENGTH]


def one_of(*choices: str) -> Rule:
    """Return the rule that a value is one of these."""
    return lambda x: x in choices, f"must be one of {', '.join(choices)}"


def at_most(limit: int) -> Rule:
    """Return the rule that a value is not beyond what machines can do within hours."""
    return lambda x: x <= limit, f"must be at most {limit:,}"


Threads = Annotated[int, COUNT, at_most(max(64, os.cpu_count() or 1))]


def check(option: str, value: Any, *rules: Rule) -> None:
    """Raise `OptionError` for a value that a rule does not allow; null is allowed where the type has it."""
    for allows, allowed in rules:
        require(value is None or allows(value), option, value, allowed)


def is_first_rank() -> bool:
    """Return whether this process writes files and lines: the only one, or rank 0."""
    return all(os.environ.get(name, "0") == "0" for name in RANKS)


@cache
def notice(line: str) -> None:
    """Print a line on stderr, once per process, and only on the first rank."""
    if is_first_rank():
        print(line, file=sys.stderr, flush=True)
