"""Errors a user can act on: one line that names the option, its value and what is allowed."""

from __future__ import annotations


class UserError(Exception):
    """Something outside the program is wrong (an option, a file, a checkpoint); the message is one line."""


class Stopped(UserError):  # noqa: N818 - the run did what it was asked to
    """A run that saved its state and stopped, because a signal asked it to.

    Attributes:
        signum: the signal.
    """

    def __init__(self, text: str, signum: int) -> None:
        super().__init__(text, signum)
        self.signum = signum

    def __str__(self) -> str:
        return str(self.args[0])


class OptionError(UserError, ValueError):
    """An option has a value that is not allowed.

    Attributes:
        option: dotted name as it is typed on the command line, or the bare field name in Python.
        value: the value that was given.
        allowed: what is allowed, in words.
    """

    def __init__(self, option: str, value: object, allowed: str) -> None:
        self.option, self.value, self.allowed = option, value, allowed
        super().__init__(f"{option}={value}: {allowed}")

    def __reduce__(self) -> tuple[type, tuple[str, object, str]]:
        """An error of a multirun's job comes back from the job's process."""
        return type(self), (self.option, self.value, self.allowed)

    def within(self, group: str) -> OptionError:
        """The same error with the option named inside its group: `mem_len` -> `memory.mem_len`."""
        return OptionError(f"{group}.{self.option}", self.value, self.allowed)


def require(condition: bool, option: str, value: object, allowed: str) -> None:
    """Raise `OptionError(option, value, allowed)` unless `condition` holds."""
    if not condition:
        raise OptionError(option, value, allowed)
