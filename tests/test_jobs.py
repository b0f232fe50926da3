"""Jobs: identity, folder with its record and lock, and the engine that runs several at once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from omegaconf import OmegaConf

from txl_lightning import jobs as module
from txl_lightning.distributed.processes import Ended, JobProcess
from txl_lightning.errors import UserError
from txl_lightning.files import LOCK, locked
from txl_lightning.jobs import JobFolder, Jobs, choose_folders, identity

OPTIONS = {"seed": 1, "optimizer.lr": 0.001}


def test_options_that_only_say_how_a_job_runs_are_not_its_identity() -> None:
    options = {"seed": 1, "n": "${seed}", "data": {"root": "/a", "name": "b"}}
    options |= {"logger": {"name": "csv"}, "trainer": {"num_threads": 2}}
    expected = {"seed": 1, "data.name": "b", "trainer.num_threads": 2}
    assert identity(OmegaConf.create({**options, "hydra": {"a": "???"}})) == {**expected, "n": 1}
    assert identity({**options, "n": (1, 2)}) == {**expected, "n": [1, 2]}


def record(overrides: list[str], options: dict[str, Any]) -> dict[str, Any]:
    return {"objective": "val/nll", "overrides": overrides, "options": options}


def test_a_folder_of_another_job_or_of_another_run_is_refused(tmp_path: Path) -> None:
    job = JobFolder(tmp_path / "0")
    job.begin(record(["seed=1"], OPTIONS))
    job.begin(record(["typed another way"], OPTIONS))
    assert job.record["overrides"] == ["seed=1"]
    with pytest.raises(UserError, match=r"holds another job \(seed=1, not 2\): choose another hydra.sweep.dir"):
        job.begin(record(["seed=2"], {**OPTIONS, "seed": 2}))
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.yaml").touch()
    with pytest.raises(UserError, match="holds a run that is no job of this multirun"):
        JobFolder(tmp_path / "run").begin(record([], OPTIONS))


def test_every_job_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    for number, seed in enumerate((1, 1, 2)):
        JobFolder(tmp_path / str(number)).begin(record([], {"seed": seed}))
    wanted = [tmp_path / str(i) for i in range(4)]
    jobs = [(wanted[i], {"seed": seed}) for i, seed in ((0, 2), (1, 1), (2, 1), (3, 1), (0, 5))]
    assert choose_folders(tmp_path, jobs) == [tmp_path / name for name in "21035"]


def test_a_cut_off_result_is_none_and_clearing_keeps_the_lock(tmp_path: Path) -> None:
    job = JobFolder(tmp_path, result_file="recl.json")
    assert (job.record, job.result) == ({}, None)
    for content in ("{", "[]"):
        (tmp_path / "recl.json").write_text(content)
        assert job.result is None, content
    job.write({"key": "k"})
    (tmp_path / "recl.json").write_text('{"recl": 3}')
    assert (job.record, job.result) == ({"key": "k"}, {"recl": 3})
    (tmp_path / "figures").mkdir()
    with locked(tmp_path):
        job.clear()
        assert [path.name for path in tmp_path.iterdir()] == [LOCK]


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
        if job.name == "full":
            raise UserError("no space left")
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
        Call("command", os.execvp, ("sh", ["sh", "-c", "echo of $TXL_JOB; exit 3"])),
    ]
    record, engine = run(*calls, log=tmp_path / "log.txt")
    assert record.ends["variable"].value == "variable"
    assert len({record.ends[name].value for name in ("group", "pid")} | {os.getpgrp(), os.getpid()}) == 4
    assert record.ends["large"].value == bytes(1 << 20)
    assert (tmp_path / "log.txt").read_text() == "a line\nof command\n"
    assert engine.failed == {"command": "ended with exit status 3"}


def test_every_end_of_a_process_is_named_and_leaves_the_others() -> None:
    calls = [
        Call("killed", signal.raise_signal, (signal.SIGKILL,)),
        Call("interrupted", signal.raise_signal, (signal.SIGINT,)),
        Call("full"),
        Call("returned", str, (1,)),
    ]
    _, engine = run(*calls, n_slots=4)
    named = {"killed": "was killed by SIGKILL", "interrupted": "was interrupted"}
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
def test_a_signal_ends_a_job_with_its_children(words: list[str], status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS_TO_KILL", 0.2)
    record = Record()
    late = [Call("late", os.execvp, (words[0], words)), Call("later")]
    engine = Jobs(late, record.start, record.end, grace_seconds=0.2, first_signal=signal.SIGTERM)
    Timer(1.0, signal.raise_signal, (signal.SIGUSR1,)).start()
    with pytest.raises(KeyboardInterrupt):
        engine.run()
    assert record.ends["late"].status == status
    assert [job.name for job in engine.waiting] == ["later"]
    assert (engine.failed, engine.stopped) == ({}, True)
