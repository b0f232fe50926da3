"""Processes of jobs: start them in groups of their own, wait for them, interrupt and end them."""

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
from hydra.core.utils import JobReturn

from hydra_plugins.txl_process_launcher import _job_main
from hydra_plugins.txl_process_launcher._hydra_internals import failed_job
from hydra_plugins.txl_process_launcher._multirun_job import MultirunJob
from txl_lightning.distributed.multirun import JobError, JobKilledError

SECONDS_TO_KILL = 5.0  # from SIGTERM to SIGKILL
POLL_SECONDS = 0.1


class JobProcess:
    """Process of a running job.

    Args:
        job: the job to run.
        environment: all variables of the process.
        log: file for standard output and error; None for those of the launcher.
    """

    def __init__(self, job: MultirunJob, environment: Mapping[str, str], log: Path | None) -> None:
        self.job, self.log, self.started = job, log, time.monotonic()
        # Files without a name leave nothing on the disk, however the processes end.
        self._result = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `poll`)
        arguments = [str(os.getpid()), str(self._result.fileno()), f"#{job.number}", *job.overrides]
        with tempfile.TemporaryFile() as task, open(os.devnull if log is None else log, "ab") as output:
            pickle.dump(sys.path, task)
            pickle.dump(job, task)
            task.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, _job_main.__file__, *arguments],
                stdin=task,
                stdout=None if log is None else output,
                stderr=None if log is None else subprocess.STDOUT,
                env=dict(environment),
                pass_fds=[self._result.fileno()],
                start_new_session=True,
            )

    def poll(self) -> JobReturn | None:
        """Return the result of the job once its process has ended; None before."""
        returncode = self._process.poll()
        if returncode is None:
            return None
        self._signal_group(signal.SIGKILL)  # processes that the job started and did not end
        self._result.seek(0)
        try:
            done: JobReturn = pickle.load(self._result)
        except (EOFError, pickle.UnpicklingError):
            return failed_job(self.job.overrides, _process_error(returncode, self.log))
        finally:
            self._result.close()
        return done

    def interrupt(self) -> None:
        """Send SIGINT to the first process of the job, which saves and stops its others."""
        self._process.send_signal(signal.SIGINT)

    def terminate(self) -> None:
        """Send SIGTERM to the whole group."""
        self._signal_group(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the whole group, and the processes that it started in groups of their own."""
        with suppress(psutil.Error):
            for process in psutil.Process(self._process.pid).children(recursive=True):
                with suppress(psutil.Error):
                    process.kill()
        self._signal_group(signal.SIGKILL)

    def _signal_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


@contextmanager
def collected_signals() -> Iterator[list[int]]:
    """Collect SIGINT, SIGTERM and SIGHUP in a list instead of raising between any two steps of the caller.

    Yields:
        The signals received so far.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def collect(number: int, frame: FrameType | None) -> None:
        received.append(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    # A signal that is ignored stays ignored: nohup relies on that.
    handled = {number for number, handler in before.items() if handler is not signal.SIG_IGN}
    for number in handled:
        signal.signal(number, collect)
    try:
        yield received
    finally:
        for number in handled:
            signal.signal(number, before[number])


def run_all(
    jobs: Sequence[MultirunJob],
    start: Callable[[MultirunJob], JobProcess],
    max_parallel: int,
    grace_seconds: float,
    on_end: Callable[[MultirunJob, float, JobReturn], None],
) -> list[JobReturn]:
    """Run all jobs, `max_parallel` at once, and return their results in order.

    The first SIGINT (Ctrl-C), SIGTERM or SIGHUP interrupts the running jobs, and no further job starts. Jobs that
    still run after `grace_seconds`, or at a second signal, are terminated.

    Args:
        jobs: jobs of one batch.
        start: starts a job's process.
        max_parallel: number of jobs that run at once.
        grace_seconds: time for jobs to write a checkpoint.
        on_end: called with each job, its seconds and its result when it ends.

    Raises:
        KeyboardInterrupt: after a signal, once all processes have ended.
    """
    waiting, running, results = list(jobs), list[JobProcess](), dict[int, JobReturn]()
    with collected_signals() as received:
        stops: list[tuple[float, Callable[[JobProcess], None]]] | None = None
        try:
            while running or (waiting and not received):
                while waiting and len(running) < max_parallel and not received:
                    job = waiting.pop(0)
                    try:
                        running.append(start(job))
                    except OSError as error:  # of its folder or log; the other jobs can still run
                        results[job.number] = failed_job(job.overrides, JobError(f"could not start: {error}"))
                        on_end(job, 0.0, results[job.number])
                for process in list(running):
                    if (done := process.poll()) is not None:
                        running.remove(process)
                        results[process.job.number] = done
                        on_end(process.job, time.monotonic() - process.started, done)
                if received and stops is None:
                    stops = _stops(time.monotonic() + grace_seconds)
                while stops and (time.monotonic() >= stops[0][0] or len(received) > 1):
                    _, stop = stops.pop(0)
                    for process in running:
                        stop(process)
                if running:
                    time.sleep(POLL_SECONDS)
        finally:
            for process in running:
                process.kill()
    if received:
        raise KeyboardInterrupt
    return [results[job.number] for job in jobs]


def _stops(deadline: float) -> list[tuple[float, Callable[[JobProcess], None]]]:
    """Return the times and ways of ending running jobs, each harder than the one before."""
    return [(0, JobProcess.interrupt), (deadline, JobProcess.terminate), (deadline + SECONDS_TO_KILL, JobProcess.kill)]


def _process_error(returncode: int, log: Path | None) -> JobError:
    """Describe a process without a result by its return code, as `subprocess` gives it."""
    kind = JobError
    if returncode in (-signal.SIGINT, 128 + signal.SIGINT):
        text = "was interrupted"
    elif returncode < 0:
        kind, text = JobKilledError, f"was killed by {signal.Signals(-returncode).name}"
    else:
        text = f"ended with exit status {returncode} and no result"
    return kind(text if log is None else f"{text}: see {log}")
