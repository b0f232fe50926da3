"""Progress of jobs: the time left, the status line, a line for each job that ends."""

import time
from unittest.mock import Mock

import pytest

from tests.jobs.test_processes import Call
from txl_lightning.jobs.processes import Jobs
from txl_lightning.jobs.progress import Progress, clock


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


def test_the_status_line_has_the_jobs_done_the_time_left_and_the_running_jobs() -> None:
    words = {"a": "600/1500 bpc 2.597", "b": ""}
    calls = [Call("time", alone=True), *(Call(name) for name in "abcd")]
    jobs = Jobs(calls, Mock(), Mock(), done={"before"})
    progress = Progress(jobs, lambda job: 60.0, slots=2, describe=lambda job: words[job.name])
    started(progress, "a", "b")
    # two that run and two that wait, two at once, and one alone
    assert progress.seconds_left() == pytest.approx(4 * 60 / 2 + 60, abs=1)
    assert progress.status() == "1 of 6 jobs done, about 3 min left · a 600/1500 bpc 2.597 · b"


def test_the_time_left_follows_the_pace_of_the_jobs_so_far() -> None:
    shares: dict[str, tuple[float, float]] = {}
    jobs = Jobs([Call(name) for name in "abcd"], Mock(), Mock(), done={"before"})
    progress = Progress(jobs, lambda job: 100.0, share=lambda job: shares.get(job.name))
    started(progress, "b")
    assert progress.pace() == 1  # a job that has just begun shows nothing
    shares["b"] = (0.2, 60.0)
    assert progress.pace() == 3  # 60 seconds for a fifth of 100
    assert progress.seconds_left() == pytest.approx(3 * 400, abs=1)
    ended(progress, "a", 100.0)
    assert progress.pace() == pytest.approx(160 / 120)


def test_a_line_is_printed_once_for_each_job_that_ends(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(Jobs([Call(name) for name in "abc"], Mock(), Mock()), lambda job: 60.0)
    started(progress, "a", "b")
    progress.show()
    assert capsys.readouterr().err == "0 of 3 jobs done, about 3 min left · a · b\n"
    ended(progress, "a", 12.4)
    ended(progress, "b", 3.0, "b failed")
    progress.show()
    progress.show()
    assert capsys.readouterr().err.splitlines() == ["a: done in 12 s", "b failed"]


def test_durations_have_fitting_units() -> None:
    assert [clock(s) for s in (45, 600, 7200, 72 * 3600)] == ["45 s", "10 min", "2.0 h", "3 days"]
