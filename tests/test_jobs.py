"""Jobs side by side: processes, order, signals."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer

import psutil
import pytest

from txl_lightning import jobs
from txl_lightning.jobs import Jobs, Process, problem


@dataclass(frozen=True)
class Call:
    """A job that runs a line of the shell."""

    name: str
    line: str = "true"
    needs: tuple[str, ...] = ()
    alone: bool = False


@dataclass
class Record:
    """Starts calls and keeps how they ended and when they ran."""

    ended: dict[str, float] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    started: dict[str, float] = field(default_factory=dict)

    def start(self, job: Call) -> Process:
        self.started[job.name] = time.monotonic()
        return Process(["sh", "-c", job.line], {}, start_new_session=True)

    def end(self, job: Call, process: Process) -> str | None:
        self.ended[job.name] = time.monotonic()
        self.statuses[job.name] = process.returncode
        return problem(process.returncode) if process.returncode else None


def run(*calls: Call, record: Record, at_once: int = 1) -> Jobs:
    engine = Jobs(list(calls), record.start, record.end, at_once)
    engine.run()
    return engine


def test_every_end_of_a_process_is_named_and_leaves_the_others() -> None:
    killed = Call("killed", "kill -KILL $$")
    interrupted = Call("interrupted", "kill -INT $$; sleep 9")
    failed = Call("failed", "exit 3")
    engine = run(killed, interrupted, failed, Call("good"), record=Record(), at_once=4)
    assert engine.failed == {
        "killed": "was killed by SIGKILL",
        "interrupted": "was interrupted",
        "failed": "ended with exit status 3",
    }
    assert engine.done == {"good"}


def test_jobs_run_after_the_jobs_that_they_need() -> None:
    record = Record()
    failing = Call("fails", "exit 1")
    engine = run(
        failing,
        Call("needs it", needs=("fails",)),
        Call("a"),
        Call("reads a", needs=("a",)),
        record=record,
    )
    assert list(record.started) == ["fails", "a", "reads a"]
    assert engine.failed["needs it"] == "needs it was not run: it needs fails"


def test_jobs_run_side_by_side_and_alone_at_the_end() -> None:
    record = Record()
    calls = [Call("time", "sleep 0.2", alone=True)]
    calls.extend(Call(name, "sleep 0.4") for name in "abc")
    run(*calls, record=record, at_once=2)
    ends = record.ended
    assert record.started["b"] < ends["a"]
    assert record.started["c"] >= min(ends["a"], ends["b"])
    assert record.started["time"] >= max(ends[name] for name in "abc")


def test_processes_that_a_job_leaves_behind_end_with_it(tmp_path: Path) -> None:
    run(Call("leaves one", f"sleep 600 & echo $! > {tmp_path}/pid"), record=Record())
    left = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 5
    while psutil.pid_exists(left) and psutil.Process(left).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("sleep 600", -signal.SIGTERM),
        ("trap '' TERM; while :; do sleep 600; done", -signal.SIGKILL),
    ],
)
def test_a_signal_ends_a_job_with_its_children(
    line: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Record()
    waiting = [Call("late", line), Call("later")]
    monkeypatch.setattr(jobs, "GRACE_SECONDS", 0.2)
    engine = Jobs(waiting, record.start, record.end)
    Timer(1.0, signal.raise_signal, (signal.SIGUSR1,)).start()
    with pytest.raises(KeyboardInterrupt) as stopped:
        engine.run()
    assert stopped.value.args == (signal.SIGUSR1,)
    assert record.statuses == {"late": status}
    assert [job.name for job in engine.waiting] == ["later"]
    assert (engine.failed, engine.signals) == ({}, [signal.SIGUSR1])
