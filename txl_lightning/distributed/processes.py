"""Processes that a command starts: the jobs of a multirun or a reproduction, and the ranks of one run.

A child ends with its parent, whatever kills that. Importing torch, Lightning and Hydra takes as long as a short run, so
a fork server imports them once. This module needs the standard library and psutil: every command imports it.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import psutil

from txl_lightning.errors import Stopped, UserError

# SLURM sends SIGUSR1 before the time limit.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
MEETING = "TXL_MEETING"  # variable with the file in which ranks of one machine meet
LOOPBACK = dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), "lo" if sys.platform == "linux" else "lo0")
# A rank that loses its connection fails because another one did: that one must be found first.
LOST_CONNECTION = ("Connection closed by peer", "Connection reset by peer")
LEAD_SECONDS = 3.0
SECONDS_TO_STOP = 20.0  # from the first rank that a signal ended to the last
SECONDS_TO_END = 30.0  # from SIGTERM to SIGKILL, after another rank has failed
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Ended:
    """End of a process.

    Attributes:
        value: what its function returned; None without a result.
        status: exit status, negative for a signal; None for a process that could not start.
        seconds: wall-clock time.
        error: why it could not start.
    """

    value: Any
    status: int | None
    seconds: float = 0.0
    error: Exception | None = None

    @property
    def problem(self) -> str:
        """How the process ended, such as `was killed by SIGKILL`."""
        if self.status is None:
            return f"could not start: {self.error}"
        if self.status in (-signal.SIGINT, 128 + signal.SIGINT):
            return "was interrupted"
        if self.status < 0:
            return f"was killed by {signal.Signals(-self.status).name}"
        return f"ended with exit status {self.status}"


class JobProcess:
    """Process that calls `function(*arguments)` and ends with this process.

    Args:
        function: function of a module; its result must be picklable.
        arguments: its arguments.
        variables: environment variables beside those of this process.
        log: file that the output is appended to; None for the output of this process.
        modules: imported once, before the first process is forked.
        own_session: start the child in a session of its own: a terminal's signals do not reach it, and its processes
            end with it.

    Attributes:
        pid: process id, in a session of its own also of its group.
        started: time of `time.monotonic`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        variables: Mapping[str, str] | None = None,
        log: Path | None = None,
        modules: Sequence[str] = (),
        own_session: bool = True,
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(modules))
        resource_tracker.ensure_running()  # its start unblocks signals
        # The server inherits the mask: a signal to the group of this process does not end it.
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        self._answer, answer = context.Pipe(duplex=False)
        environment, nohup = {**os.environ, **(variables or {})}, signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        settings = (answer, environment, log, own_session, nohup)
        self._process = context.Process(target=_run, args=(*settings, function, arguments))
        self._process.start()
        answer.close()
        assert self._process.pid is not None
        self.pid, self.own_session = self._process.pid, own_session
        self._value: Any = None
        self.started = time.monotonic()

    def poll(self) -> Ended | None:
        """Return the end of the process, once it and all processes of its session have ended; None before."""
        status = self._process.exitcode
        with suppress(EOFError, OSError):  # no result, or only a part of one
            if self._answer.poll():
                self._value = self._answer.recv()
        if status is None:
            return None
        if self.own_session:
            self.end(signal.SIGKILL)  # processes that it started and did not end
        return Ended(self._value, status, time.monotonic() - self.started)

    def interrupt(self, number: int = signal.SIGINT) -> None:
        """Send a signal to the process alone, which saves and stops those that it started."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def end(self, number: signal.Signals) -> None:
        """Send a signal to the whole group, SIGKILL also to the processes that it started in groups of their own."""
        with suppress(psutil.Error):
            for process in psutil.Process(self.pid).children(recursive=True) if number == signal.SIGKILL else ():
                with suppress(psutil.Error):
                    process.kill()
        with suppress(ProcessLookupError, PermissionError):
            (os.killpg if self.own_session else os.kill)(self.pid, number)


def _run(
    answer: Connection,
    environment: dict[str, str],
    log: Path | None,
    own_session: bool,
    nohup: bool,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    if own_session:
        os.setsid()
    threading.Thread(target=_end_with_parent, name="end_with_parent", daemon=True).start()
    for number in STOP_SIGNALS:  # a shell ignores SIGINT for commands in the background
        default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if nohup and number == signal.SIGHUP else default)
    os.environ.clear()
    os.environ.update(environment)
    if log is not None:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(output, stream.fileno())
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr] # for `tail -f`
    if "torch" in sys.modules and "OMP_NUM_THREADS" in environment:  # read when the server imported it
        sys.modules["torch"].set_num_threads(int(environment["OMP_NUM_THREADS"]))
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # one may have arrived
        answer.send(function(*arguments))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def _end_with_parent() -> None:
    """Kill this process once its parent is gone, and with it the group that it leads."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "not a process of multiprocessing"
    parent.join()
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def handled_signals(handler: Any) -> Iterator[None]:
    """Handle the signals that stop a run in the block, but for a SIGHUP that nohup ignores."""

    def handle(number: int, frame: Any) -> None:
        for stream in (1, 2) if number == signal.SIGHUP else ():
            try:
                os.write(stream, b"")
            except OSError:  # a closed terminal, where every message would be an error
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        handler(number, frame)

    nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    handled = [number for number in STOP_SIGNALS if not (nohup and number == signal.SIGHUP)]
    before = {number: signal.signal(number, handle) for number in handled}
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, before[number])


def run_on_all(function: Callable[..., Any], *arguments: Any, processes: int) -> Any:
    """Call `function(*arguments)` in W fresh processes of this machine in parallel, and return the result of rank 0.

    Like torchrun: every process finds RANK and WORLD_SIZE in its environment and gets 1/W of this process's threads.
    Signals that stop a run are forwarded, so that every rank can save and stop. When one rank fails, the others are
    ended. The ranks meet in a file that only this user can open and talk over the loopback: no other machine reaches
    them.

    Raises:
        UserError: a rank failed; names the first one and its error.
        Stopped: a signal ended the ranks, after a step on which they agreed or before they could.
    """
    import torch  # not at the start of every command

    received, ranks, ended = list[int](), list[JobProcess](), dict[int, Ended]()

    def forward(number: int, _: Any) -> None:
        received.append(number)
        for rank in ranks:
            rank.interrupt(number)

    with TemporaryDirectory() as folder, handled_signals(forward):
        # Lightning knows by TORCHELASTIC_RUN_ID that these processes are ranks.
        shared = {**LOOPBACK, MEETING: f"file://{folder}/meeting", "TORCHELASTIC_RUN_ID": "txl"}
        shared |= {"WORLD_SIZE": str(processes), "OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // processes))}
        options: dict[str, Any] = {"modules": [function.__module__], "own_session": False}
        deadline, patience = math.inf, 0.0
        try:
            for rank in map(str, range(processes)):
                variables = {**shared, "RANK": rank, "LOCAL_RANK": rank}
                ranks.append(JobProcess(_call, function, *arguments, variables=variables, **options))
            for rank_process in ranks if received else ():  # some started after the signal
                rank_process.interrupt(received[0])
            while len(ended) < processes and not any(_error(*rank) for rank in ended.items()):
                time.sleep(POLL_SECONDS)
                ended |= {i: end for i, one in enumerate(ranks) if i not in ended and (end := one.poll()) is not None}
                if received and ended:
                    deadline = min(deadline, time.monotonic() + SECONDS_TO_STOP)
                if time.monotonic() > deadline:  # a rank that stopped before all had met leaves others waiting for it
                    raise _stopped_by(received[0])
            patience = SECONDS_TO_END
        finally:
            _end_ranks([one for i, one in enumerate(ranks) if i not in ended], patience)
    for error in filter(None, (_error(*rank) for rank in sorted(ended.items()))):
        if received:  # before training began, or at the second Ctrl-C
            raise _stopped_by(received[0])
        sys.stderr.write(error.traceback)
        raise UserError(error.text)
    value = ended[0].value
    if isinstance(value, Stopped):
        raise Stopped(str(value), received[0] if received else value.signum)
    return value


class _RankError(NamedTuple):
    """Error of a rank, with the traceback of one that a user cannot act on."""

    text: str
    traceback: str = ""


def _error(rank: int, ended: Ended) -> _RankError | None:
    killed = _RankError(f"rank {rank} {ended.problem}; the other ranks were stopped") if ended.status else None
    return ended.value if isinstance(ended.value, _RankError) else killed


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function; return its result or its error."""
    try:
        return function(*arguments)
    except Stopped as stopped:  # all ranks stopped after the same step and none failed
        return stopped
    except (UserError, OSError) as error:
        return _RankError(str(error))
    except Exception as error:
        if any(words in str(error) for words in LOST_CONNECTION):
            time.sleep(LEAD_SECONDS)
        failed = f"rank {os.environ['RANK']} failed: {type(error).__name__}: {error}; the other ranks were stopped"
        return _RankError(failed, traceback.format_exc())


def _end_ranks(ranks: list[JobProcess], patience: float) -> None:
    """End ranks by SIGTERM, and those that still run after some seconds by SIGKILL."""
    for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, math.inf)):
        deadline = time.monotonic() + seconds
        for rank in ranks:
            rank.end(number)
        while (ranks := [rank for rank in ranks if rank.poll() is None]) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)


def _stopped_by(signum: int) -> Stopped:
    return Stopped(f"stopped by {signal.Signals(signum).name}", signum)
