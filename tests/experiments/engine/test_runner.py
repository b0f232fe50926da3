"""Running jobs: in parallel, once, in order, and the messages when one fails."""

import json
import threading
from pathlib import Path
from typing import ClassVar

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from experiments.engine import job_process
from experiments.engine.jobs import Job
from experiments.engine.progress import Progress, clock
from experiments.engine.runner import LOG, Runner, Running, result_file
from txl_lightning.errors import UserError


class Pretended:
    """A process that ends when it is told to, or at once."""

    running: ClassVar[list[str]] = []
    most_at_once: ClassVar[int] = 0
    started: ClassVar[list[list[str]]] = []

    def __init__(self, words: list[str], log: Path, status: int) -> None:
        self.name, self.status = log.parent.name, status
        Pretended.started.append(words)
        Pretended.running.append(self.name)
        Pretended.most_at_once = max(Pretended.most_at_once, len(Pretended.running))
        self.over = threading.Event()
        threading.Timer(0.15, self.over.set).start()
        log.write_text("first line\nlast line\n")
        if not status:
            (log.parent / result_file(words[0])).write_text("{}")

    @property
    def exitcode(self) -> int | None:
        if not self.over.is_set():
            return None
        if self.name in Pretended.running:
            Pretended.running.remove(self.name)
        return self.status

    def terminate(self) -> None:
        self.over.set()

    def kill(self) -> None:
        self.over.set()


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    names: set[str] = set()
    Pretended.running, Pretended.started, Pretended.most_at_once = [], [], 0

    def start(words: list[str], log: Path, lock: Path, environment: dict[str, str]) -> Pretended:
        return Pretended(words, log, 3 if log.parent.name in names else 0)

    monkeypatch.setattr(job_process, "start", start)
    return names


def runner(tmp_path: Path, jobs: list[Job], slots: int = 2) -> Runner:
    return Runner(tmp_path, {job.name: f"key of {job.name}" for job in jobs}, [{}] * slots, lambda job: [])


JOBS = [
    Job("time", "speed", (), "x", alone=True),
    *(Job(name, "train", (), "x") for name in "abc"),
    Job("read", "evaluate", ("checkpoint=@runs/a/checkpoints/best.ckpt",), "x", needs=("a",)),
]


def run_json(tmp_path: Path, name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((tmp_path / name / "job.json").read_text())
    return found


def test_jobs_run_in_parallel_once_and_time_is_measured_alone(tmp_path: Path, failing: set[str]) -> None:
    jobs = [*JOBS]
    first = runner(tmp_path, jobs)
    first.run(jobs)
    assert set(first.done) == {job.name for job in jobs}
    assert Pretended.most_at_once == 2
    assert Pretended.started[-1][0] == "speed"
    evaluate = next(words for words in Pretended.started if words[0] == "evaluate")
    assert f"checkpoint={tmp_path}/a/checkpoints/best.ckpt" in evaluate
    assert run_json(tmp_path, "a")["done"] is True
    n = len(Pretended.started)
    runner(tmp_path, jobs).run(jobs)
    assert len(Pretended.started) == n  # nothing is run again


def test_a_failed_job_is_named_and_only_it_and_what_needs_it_is_run_again(tmp_path: Path, failing: set[str]) -> None:
    failing.add("a")
    jobs = [*JOBS]
    with pytest.raises(UserError, match=r"a ended with exit status 3: last line \(.*log.txt\)\n?.*read was not run"):
        runner(tmp_path, jobs).run(jobs)
    failing.clear()
    Pretended.started.clear()
    runner(tmp_path, jobs).run(jobs)
    assert sorted(words[0] for words in Pretended.started) == ["evaluate", "train"]


def test_a_job_that_was_killed_before_its_first_word_is_named(
    tmp_path: Path, failing: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(words: list[str], log: Path, lock: Path, environment: dict[str, str]) -> Pretended:
        process = Pretended(words, log, -9 if log.parent.name == "a" else 0)
        log.unlink()
        return process

    monkeypatch.setattr(job_process, "start", start)
    with pytest.raises(UserError, match=r"^a ended with exit status -9: no output"):
        runner(tmp_path, JOBS[1:3]).run(JOBS[1:3])
    assert run_json(tmp_path, "b")["done"] is True


def test_a_job_whose_key_changed_starts_again_and_any_other_resumes(tmp_path: Path, failing: set[str]) -> None:
    job = JOBS[1]
    for key, kept in (("key of a", True), ("another", False)):
        failing.add("a")
        with pytest.raises(UserError):
            runner(tmp_path, [job]).run([job])
        (tmp_path / "a" / "half_done").write_text("")
        failing.clear()
        again = runner(tmp_path, [job])
        again.keys = {"a": key}
        again.run([job])
        assert (tmp_path / "a" / "half_done").exists() == kept
        (tmp_path / "a" / "job.json").unlink()
        assert "resume=auto" in Pretended.started[-1]


def test_a_job_whose_result_was_cut_off_runs_again(tmp_path: Path, failing: set[str]) -> None:
    jobs = JOBS[1:3]
    runner(tmp_path, jobs).run(jobs)
    (tmp_path / "a" / "metrics.json").write_text('{"steps": 6')
    Pretended.started.clear()
    again = runner(tmp_path, jobs)
    again.run(jobs)
    assert [words[-2:] for words in Pretended.started] == [[f"hydra.run.dir={tmp_path}/a", "resume=auto"]]
    assert set(again.done) == {"a", "b"}


def test_a_folder_may_have_signs_of_hydras_grammar(tmp_path: Path, failing: set[str]) -> None:
    runs = tmp_path / "copy (1), x=y’s" / "it's"
    read = Job("read", "recl", ("checkpoints=[@runs/a/best.ckpt,@runs/b/best.ckpt]", "data_path=@runs/../c.txt"), "x")
    runner(runs, [read]).run([read])
    parsed = [word.value() for word in OverridesParser.create().parse_overrides(Pretended.started[0][1:])]
    assert [str(path) for path in parsed[0]] == [f"{runs}/{name}/best.ckpt" for name in "ab"]
    assert [str(path) for path in parsed[1:]] == [f"{runs.parent}/c.txt", f"{runs}/read"]


def test_the_status_line_shows_the_progress_file_not_the_log(tmp_path: Path) -> None:
    job, other = JOBS[1], JOBS[2]
    watched = runner(tmp_path, JOBS)
    progress = Progress(JOBS, lambda job: 60.0, slots=2)
    watched.done, watched.waiting = {"c": JOBS[3]}, [JOBS[0], JOBS[4]]
    handle = Pretended(["train"], make_folder(tmp_path / "a") / LOG, 0)
    watched.running = [Running(job, handle, 0), Running(other, handle, 1)]
    (tmp_path / "a" / LOG).write_text(" 99%|#### | 1499/1500 [00:20<00:30, 30.1step/s, nll 1.000, bpc 1.443]\n")
    assert progress.status(watched) == "1 of 5 jobs done, about 2 min left · a · b"
    state = {"steps": 600, "max_steps": 1500, "unit": "bpc", "loss": 2.5971, "seconds": 20.0}
    (tmp_path / "a" / "progress.json").write_text(json.dumps(state))
    assert progress.status(watched).endswith(" · a 600/1500 bpc 2.597 · b")
    (tmp_path / "a" / "progress.json").write_text(json.dumps({**state, "steps": 0, "loss": None}))
    assert progress.status(watched).endswith(" · a 0/1500 · b")


def test_the_time_left_follows_the_pace_of_the_trainings_so_far(tmp_path: Path) -> None:
    jobs = [Job(name, "train", (), "tables") for name in "abcd"]
    watched = runner(tmp_path, jobs)
    progress = Progress(jobs, lambda job: 100.0, slots=1)
    watched.waiting = [jobs[2], jobs[3]]
    handle = Pretended(["train"], make_folder(tmp_path / "b") / LOG, 0)
    watched.running = [Running(jobs[1], handle, 0)]
    state = {"steps": 50, "max_steps": 1000, "unit": "bpc", "loss": None, "seconds": 60.0}
    path = tmp_path / "b" / "progress.json"
    path.write_text(json.dumps(state))
    assert progress.pace(watched) == 1  # a training that has just begun shows nothing
    path.write_text(json.dumps({**state, "steps": 200}))
    assert progress.pace(watched) == 3  # 60 seconds for a fifth of 100
    assert progress.seconds_left(watched) == pytest.approx(3 * 300, abs=1)
    watched.done = {"a": jobs[0]}
    (make_folder(tmp_path / "a") / "job.json").write_text(json.dumps({"seconds": 100.0}))
    assert progress.pace(watched) == pytest.approx(160 / 120)


def make_folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_a_line_is_printed_for_each_job_that_ends(
    tmp_path: Path, failing: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    failing.add("b")
    jobs = [JOBS[1], JOBS[2]]
    watched = runner(tmp_path, jobs)
    watched.show = Progress(jobs, lambda job: 60.0, slots=2)
    with pytest.raises(UserError):
        watched.run(jobs)
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("a: done in ")]
    assert [line for line in lines if line.startswith("b ended with exit status 3: last line")]


def test_durations_have_fitting_units() -> None:
    assert [clock(s) for s in (45, 600, 7200, 72 * 3600)] == ["45 s", "10 min", "2.0 h", "3 days"]
