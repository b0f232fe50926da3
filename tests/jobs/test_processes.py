"""The engine of jobs: processes with their results and ends, several at once, in order, within a limit, progress."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from txl_lightning.distributed.processes import Ended, JobProcess, execute
from txl_lightning.errors import UserError
from txl_lightning.jobs.processes import Jobs, Progress, clock


@dataclass(frozen=True)
class Call:
    """A job that calls a function."""

    name: str
    function: Callable[..., Any] = time.sleep
    arguments: tuple[Any, ...] = (0,)
    needs: tuple[str, ...] = ()
    alone: bool = False


@dataclass
class Record:
    """Starts calls and keeps how they ended and how many ran at once."""

    log: Path | None = None
    ends: dict[str, Ended] = field(default_factory=dict)
    started: dict[str, float] = field(default_factory=dict)
    slots: dict[str, int] = field(default_factory=dict)

    def start(self, job: Call, slot: int) -> JobProcess:
        self.started[job.name], self.slots[job.name] = time.monotonic(), slot
        return JobProcess(job.function, *job.arguments, variables={"TXL_JOB": job.name}, log=self.log)

    def end(self, job: Call, ended: Ended) -> str | None:
        self.ends[job.name] = ended
        return None if ended.status == 0 else ended.problem

    def intervals(self) -> dict[str, tuple[float, float]]:
        return {name: (begun, begun + self.ends[name].seconds) for name, begun in self.started.items()}


def run(*jobs: Call, log: Path | None = None, **options: Any) -> tuple[Record, Jobs[Call]]:
    record = Record(log)
    engine = Jobs(list(jobs), record.start, record.end, **options)
    engine.run()
    return record, engine


def test_a_job_has_a_group_variables_a_log_and_a_result(tmp_path: Path) -> None:
    calls = [
        Call("variable", os.getenv, ("TXL_JOB",)),
        Call("group", os.getpgrp, ()),
        Call("pid", os.getpid, ()),
        Call("large", bytes, (1 << 20,)),  # more than a pipe holds
        Call("printed", print, ("a line",)),
        Call("command", execute, (["sh", "-c", "echo of $TXL_JOB; exit 3"],)),
    ]
    record, engine = run(*calls, log=tmp_path / "log.txt")
    assert record.ends["variable"].value == "variable"
    assert len({record.ends[name].value for name in ("group", "pid")} | {os.getpgrp(), os.getpid()}) == 4
    assert record.ends["large"].value == bytes(1 << 20)
    assert (tmp_path / "log.txt").read_text() == "a line\nof command\n"
    assert engine.failed == {"command": "ended with exit status 3"}


def test_every_end_of_a_process_is_named_and_leaves_the_others() -> None:
    def start(job: Call, slot: int) -> JobProcess:
        if job.name == "full":
            raise UserError("no space left")
        return Record().start(job, slot)

    calls = [
        Call("killed", signal.raise_signal, (signal.SIGKILL,)),
        Call("interrupted", signal.raise_signal, (signal.SIGINT,)),
        Call("left", os._exit, (7,)),
        Call("full"),
        Call("returned", str, (1,)),
    ]
    engine = Jobs(calls, start, lambda job, ended: None if ended.status == 0 else ended.problem, n_slots=4)
    engine.run()
    named = {"killed": "was killed by SIGKILL", "interrupted": "was interrupted", "left": "ended with exit status 7"}
    assert engine.failed == {**named, "full": "could not start: no space left"}
    assert engine.done == {"returned"}


def test_jobs_run_side_by_side_after_those_they_need_and_alone_at_the_end() -> None:
    calls = [
        Call("time", arguments=(0.2,), alone=True),
        *(Call(name, arguments=(0.4,)) for name in "abc"),
        Call("reads a", needs=("a",)),
        Call("fails", os._exit, (1,)),
        Call("needs it", needs=("fails",)),
    ]
    record, engine = run(*calls, n_slots=2)
    times = record.intervals()
    most = max(sum(begin <= start < end for begin, end in times.values()) for start, _ in times.values())
    assert most == 2
    assert set(record.slots.values()) == {0, 1}
    assert times["reads a"][0] >= times["a"][1]
    assert times["time"][0] >= max(end for name, (_, end) in times.items() if name != "time")
    assert engine.failed == {"fails": "ended with exit status 1", "needs it": "needs it was not run: it needs fails"}
    assert "needs it" not in times


@pytest.mark.parametrize(
    ("words", "status"),
    [(["sleep", "600"], -signal.SIGTERM), (["sh", "-c", "trap '' TERM; while :; do sleep 600; done"], -signal.SIGKILL)],
)
def test_a_job_that_exceeds_the_limit_is_ended_with_its_children(
    words: list[str], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txl_lightning.jobs.processes.SECONDS_TO_KILL", 0.2)
    late = Call("late", execute, (words,))
    options: dict[str, Any] = {"limit": 1.0, "grace_seconds": 0.2, "first_signal": signal.SIGTERM}
    record, engine = run(late, Call("later"), **options)
    assert record.ends["late"].status == status
    assert "later" not in record.ends
    assert [job.name for job in engine.waiting] == ["later"]
    assert (engine.interrupted, engine.failed, engine.stopped) == ({"late"}, {}, True)


def started(progress: Progress[Call], *names: str) -> None:
    """Let jobs run, since now."""
    jobs, process = progress.jobs, Mock(started=time.monotonic())
    jobs.running = [(job, process, slot) for slot, job in enumerate(jobs.waiting) if job.name in names]
    jobs.waiting = [job for job in jobs.waiting if job.name not in names]


def ended(progress: Progress[Call], name: str, seconds: float, error: str | None = None) -> None:
    jobs = progress.jobs
    jobs.running = [entry for entry in jobs.running if entry[0].name != name]
    jobs.seconds[name] = seconds
    if error is None:
        jobs.done.add(name)
    else:
        jobs.failed[name] = error


def test_a_line_for_each_job_that_ends_has_the_time_left_at_the_pace_so_far(capsys: pytest.CaptureFixture[str]) -> None:
    calls = [Call("time", alone=True), *(Call(name) for name in "abcd")]
    progress = Progress(Jobs(calls, Mock(), Mock(), done={"before"}), lambda job: 60.0, slots=2)
    started(progress, "a", "b")
    progress.show()
    assert capsys.readouterr().err == ""
    # two that run and two that wait, two at once, and one alone
    assert progress.seconds_left() == pytest.approx(4 * 60 / 2 + 60, abs=1)
    ended(progress, "a", 180.0)
    assert progress.seconds_left() == pytest.approx(3 * 180 / 2 + 180, abs=1)
    progress.show()
    ended(progress, "b", 3.0, "b failed")
    progress.show()
    progress.show()
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "a: done in 180 s · 2 of 6 jobs done, about 7 min left · b",
        "b failed · 2 of 6 jobs done, about 6 min left",
    ]


def test_durations_have_fitting_units() -> None:
    assert [clock(s) for s in (45, 600, 7200, 72 * 3600)] == ["45 s", "10 min", "2.0 h", "3 days"]
