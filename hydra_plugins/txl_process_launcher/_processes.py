"""Processes of jobs: started in groups of their own, watched, interrupted, and never left behind."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import psutil
from hydra.core.utils import JobReturn, JobStatus

from hydra_plugins.txl_process_launcher import _start
from hydra_plugins.txl_process_launcher._job import Job
from hydra_plugins.txl_process_launcher._outcomes import FailedJob, JobError, died

LAST_SECONDS = 5.0  # between SIGTERM and SIGKILL


class JobProcess:
    """A running job.

    Args:
        job: what it runs.
        environment: all of its variables.
        log: takes its standard output and error; None leaves them the terminal's.
    """

    def __init__(self, job: Job, environment: Mapping[str, str], log: Path | None) -> None:
        self.job, self.log, self.started = job, log, time.monotonic()
        # Files without a name: however the processes end, nothing stays on the disk.
        self._result = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `ended`)
        arguments = [str(os.getpid()), str(self._result.fileno()), f"#{job.number}", *job.overrides]
        with tempfile.TemporaryFile() as task, open(os.devnull if log is None else log, "ab") as output:
            pickle.dump(sys.path, task)
            pickle.dump(job, task)
            task.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, _start.__file__, *arguments],
                stdin=task,
                stdout=None if log is None else output,
                stderr=None if log is None else subprocess.STDOUT,
                env=dict(environment),
                pass_fds=[self._result.fileno()],
                start_new_session=True,
            )

    def ended(self) -> JobReturn | None:
        """What came of the job once its process has ended; None before."""
        returncode = self._process.poll()
        if returncode is None:
            return None
        self.signal_group(signal.SIGKILL)  # what the job left behind
        self._result.seek(0)
        try:
            done: JobReturn = pickle.load(self._result)
        except (EOFError, pickle.UnpicklingError):
            return failed(self.job, died(returncode, self.log))
        finally:
            self._result.close()
        return done

    def interrupt(self) -> None:
        """Ask the job to save and stop: its first process alone, which knows about its others."""
        self._process.send_signal(signal.SIGINT)

    def terminate(self) -> None:
        """Ask the whole group to end."""
        self.signal_group(signal.SIGTERM)

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to every process of the job's group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """End the whole group at once, and what its processes started in groups of their own."""
        with suppress(psutil.Error):
            for process in psutil.Process(self._process.pid).children(recursive=True):
                with suppress(psutil.Error):
                    process.kill()
        self.signal_group(signal.SIGKILL)


def failed(job: Job, error: JobError) -> FailedJob:
    """What the sweeper hears of a job that left nothing itself."""
    return FailedJob(overrides=job.overrides, status=JobStatus.FAILED, _return_value=error)


@contextmanager
def heeded_signals() -> Iterator[list[int]]:
    """The signals that ask for an end, as they come, in place of an exception between two steps of the caller."""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return

    def remember(number: int, frame: FrameType | None) -> None:
        came.append(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    heeded = {number for number, handler in before.items() if handler is not signal.SIG_IGN}  # nohup keeps its sense
    for number in heeded:
        signal.signal(number, remember)
    try:
        yield came
    finally:
        for number in heeded:
            signal.signal(number, before[number])


def run_all(
    jobs: Sequence[Job],
    start: Callable[[Job], JobProcess],
    at_once: int,
    grace_seconds: float,
    ended: Callable[[Job, float, JobReturn], None],
    every: float = 0.1,
) -> list[JobReturn]:
    """Run all jobs, `at_once` side by side, and return what came of each, in their order.

    The first Ctrl-C, SIGTERM or SIGHUP interrupts the running jobs and starts no other; what still runs after
    `grace_seconds`, or at a second signal, is ended.

    Raises:
        KeyboardInterrupt: after a signal, when no process is left.
    """
    waiting, running, results = list(jobs), list[JobProcess](), dict[int, JobReturn]()
    with heeded_signals() as asked:
        stops: list[tuple[float, Callable[[JobProcess], None]]] | None = None
        try:
            while running or (waiting and not asked):
                while waiting and len(running) < at_once and not asked:
                    job = waiting.pop(0)
                    try:
                        running.append(start(job))
                    except OSError as error:  # its folder or log: no reason to stop the others
                        results[job.number] = failed(job, JobError(f"could not start: {error}"))
                        ended(job, 0.0, results[job.number])
                for process in list(running):
                    if (done := process.ended()) is not None:
                        running.remove(process)
                        results[process.job.number] = done
                        ended(process.job, time.monotonic() - process.started, done)
                if asked and stops is None:
                    end = time.monotonic() + grace_seconds
                    stops = [(0, JobProcess.interrupt), (end, JobProcess.terminate)]
                    stops += [(end + LAST_SECONDS, JobProcess.kill)]
                while stops and (time.monotonic() >= stops[0][0] or len(asked) > 1):
                    _, stop = stops.pop(0)
                    for process in running:
                        stop(process)
                if running:
                    time.sleep(every)
        finally:
            for process in running:
                process.kill()
    if asked:
        raise KeyboardInterrupt
    return [results[job.number] for job in jobs]
