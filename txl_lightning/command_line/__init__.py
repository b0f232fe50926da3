"""Shared parts of all commands: a command as one row of a table, Hydra, help and error messages."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from txl_lightning.errors import UserError, notice, require


@dataclass(frozen=True)
class Command:
    """One command of `txl`. Its modules are imported when it runs, so a table of commands is quick to import.

    Attributes:
        usage: words after `txl`, for the help text; the first is the command's name, also of its file in `conf/`, if
            its options have groups.
        module: has `run(options, directory) -> list[str]`, which returns the lines to print at the end.
        options: dotted name of the dataclass of the options.
        summary: purpose of the command in one line.
        config: file in `conf/`, if its name is not that of the command.
        directory: `prepared`: the run directory is made and `config.yaml` written into it before the command runs;
            `own`: the command does both itself, after its checks; `none`: the command leaves nothing there.
        objective: key of `metrics.json` that a sweeper of a multirun minimises; None without one.
        text_options: options whose value is text, taken literally.
        shared_by_ranks: whether the processes that torchrun or SLURM starts run the command together.
    """

    usage: str
    module: str
    options: str
    summary: str
    config: str = ""
    directory: Literal["prepared", "own", "none"] = "prepared"
    objective: str | None = None
    text_options: tuple[str, ...] = ()
    shared_by_ranks: bool = False

    @property
    def name(self) -> str:
        """Name as typed."""
        return self.usage.split()[0]

    @property
    def schema(self) -> type:
        """Dataclass of the options."""
        module, _, class_name = self.options.rpartition(".")
        return getattr(import_module(module), class_name)

    @property
    def config_name(self) -> str:
        """File in `conf/`, without its suffix."""
        return self.config or self.name

    @property
    def resumable(self) -> bool:
        """Whether a job of a multirun that was stopped resumes when the multirun is started again."""
        return self.objective is not None

    @property
    def run(self) -> Callable[[Any, Path], list[str]]:
        """Function of the command: takes options and run directory, returns the lines to print."""
        keep_freed_memory()
        return import_module(self.module).run


class JobError(UserError):
    """Error of a job of a multirun in one line, sent by its process.

    Attributes:
        stopped: whether a signal ended the job, which continues when the multirun is started again.
    """

    def __init__(self, text: str, stopped: bool = False) -> None:
        super().__init__(text)
        self.stopped = stopped


COMMANDS: dict[str, Command] = {}  # by name


@dataclass
class Call:
    """One call of `txl`, as Hydra and the launcher of a multirun fill it in.

    Attributes:
        directory: folder of the multirun; None for a single run.
        run_directory: folder of the single run, for errors; None for a multirun.
        lock: holds the lock of the multirun's folder, once the launcher is set up.
        outcomes: a line for each job that failed, and None for each other one.
    """

    directory: Path | None = None
    run_directory: Path | None = None
    lock: ExitStack = field(default_factory=ExitStack)
    outcomes: list[str | None] = field(default_factory=list)


CALL = ContextVar[Call]("CALL")  # of this process: Hydra makes callbacks and launchers from a config


def current() -> Call:
    """Return the call of `txl` that runs; a new one outside of it."""
    return CALL.get(None) or Call()


def register_measurement(row: Command) -> None:
    """Add a command to `txl`, of the package or of a user's file.

    Raises:
        OptionError: another one has the name.
    """
    known = COMMANDS.setdefault(row.name, row).module
    require(known == row.module, "name", row.name, f"is the name of another command, of {known}")


def keep_freed_memory() -> None:
    """Let glibc keep up to 1 GiB of freed blocks: a page that Linux gives again is first filled with zeros."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:  # musl has none
        mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD
        mallopt(-3, 1 << 30) or mallopt(-3, 1 << 25)  # M_MMAP_THRESHOLD; the second is the most of older versions


@contextmanager
def ended_by_ctrl_c() -> Iterator[None]:
    """End the process at Ctrl-C with one line: for imports, of which some turn the exception into another one."""

    def end(number: int, frame: object) -> None:
        os.write(2, b"txl: interrupted\n")
        os._exit(128 + number)

    before, in_main = signal.getsignal(signal.SIGINT), threading.current_thread() is threading.main_thread()
    if before is not signal.default_int_handler or not in_main:  # ignored under nohup, or a caller's
        yield
        return
    signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def show(text: str) -> None:
    """Print a text at once. A reader that stops reading, such as `head`, is no error; a full disk ends the program."""
    try:
        print(text, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains when it ends
        if not isinstance(error, BrokenPipeError):
            sys.exit(f"txl: the output cannot be written: {error.strerror}")


@contextmanager
def usable_caches() -> Iterator[None]:
    """Use a temporary folder in the block, and say so, if HOME and XDG_CACHE_HOME name none that can be written."""
    from tempfile import TemporaryDirectory  # not needed for `txl --help`

    from txl_lightning.files import expand

    before = dict(os.environ)
    if os.path.expanduser("~") == "~":  # a user id without an account, as in containers: libraries would fail
        os.environ["HOME"] = f"{os.devnull}/home"
    caches = expand("~/.cache/txl_lightning").parent
    with ExitStack() as stack:
        with suppress(OSError):
            caches.mkdir(parents=True, exist_ok=True)
        if lost := not os.access(caches, os.W_OK):
            folder = TemporaryDirectory(prefix="txl_lightning-", ignore_cleanup_errors=True)
            os.environ["XDG_CACHE_HOME"] = stack.enter_context(folder)
            notice(f"{caches} cannot be written: caches last as long as this command; XDG_CACHE_HOME=FOLDER keeps them")
        if lost or not os.access(os.path.expanduser("~"), os.W_OK):  # which Matplotlib reports in two long lines
            os.environ.setdefault("MPLCONFIGDIR", str(expand("~/.cache/matplotlib")))
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)
