"""Running jobs: once, again after a change or a failure, and the messages when one fails."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from experiments.engine import runner as module
from experiments.engine.jobs import Job
from experiments.engine.runner import LOG, Runner, result_file, run_txl
from txl_lightning.errors import UserError
from txl_lightning.jobs.folder import JobFolder
from txl_lightning.jobs.processes import Ended, Jobs
from txl_lightning.jobs.progress import Progress


class Pretended:
    """A process that has ended after two seconds: with a result, unless its job is to fail."""

    started: ClassVar[list[list[str]]] = []
    failing: ClassVar[dict[str, int]] = {}

    def __init__(
        self,
        function: object,
        folder: JobFolder,
        words: list[str],
        prefix: tuple[str, ...],
        *,
        variables: Mapping[str, str],
        log: Path,
        modules: Sequence[str],
    ) -> None:
        assert function is run_txl
        self.status = Pretended.failing.get(folder.path.name, 0)
        Pretended.started.append(words)
        if self.status >= 0:
            log.write_text("first line\nlast line\n")
        if not self.status:
            (folder.path / result_file(words[0])).write_text("{}")

    def poll(self) -> Ended:
        return Ended(None, self.status, seconds=2.0)


@pytest.fixture(autouse=True)
def failing(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Exit status by name of the jobs that are to fail."""
    Pretended.started, Pretended.failing = [], {}
    monkeypatch.setattr(module, "JobProcess", Pretended)
    return Pretended.failing


def runner(tmp_path: Path, jobs: list[Job], slots: int = 2) -> Runner:
    return Runner(tmp_path, {job.name: f"key of {job.name}" for job in jobs}, [{}] * slots, lambda job: [])


JOBS = [
    Job("time", "speed", (), "x", alone=True),
    *(Job(name, "train", (), "x") for name in "abc"),
    Job("read", "evaluate", ("checkpoint=@runs/a/checkpoints/best.ckpt",), "x", needs=("a",)),
]


def quiet(jobs: Jobs[Job]) -> Progress[Job]:
    return Progress(jobs, lambda job: 0.0)


def record(tmp_path: Path, name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((tmp_path / name / "job.json").read_text())
    return found


def test_a_finished_job_is_recorded_and_never_run_again(tmp_path: Path) -> None:
    first = runner(tmp_path, JOBS)
    first.run(JOBS, quiet)
    assert first.state.done == {job.name for job in JOBS}
    assert Pretended.started[-1][0] == "speed"  # alone, at the end
    evaluate = next(words for words in Pretended.started if words[0] == "evaluate")
    assert f"checkpoint={tmp_path}/a/checkpoints/best.ckpt" in evaluate
    assert record(tmp_path, "a") == {"key": "key of a", "done": True, "seconds": 2.0, "command": "txl train"}
    n = len(Pretended.started)
    runner(tmp_path, JOBS).run(JOBS, quiet)
    assert len(Pretended.started) == n


def test_a_failed_job_is_named_and_only_it_and_what_needs_it_is_run_again(
    tmp_path: Path, failing: dict[str, int]
) -> None:
    failing |= {"a": 3, "b": -9}
    with pytest.raises(UserError) as error:
        runner(tmp_path, JOBS).run(JOBS, quiet)
    assert set(str(error.value).splitlines()) == {
        f"a ended with exit status 3: last line ({tmp_path}/a/{LOG})",
        f"b was killed by SIGKILL: no output ({tmp_path}/b/{LOG})",
        "read was not run: it needs a",
    }
    assert record(tmp_path, "a")["done"] is False
    failing.clear()
    Pretended.started.clear()
    runner(tmp_path, JOBS).run(JOBS, quiet)
    assert sorted(words[0] for words in Pretended.started) == ["evaluate", "train", "train"]
    assert record(tmp_path, "a")["seconds"] == 4.0  # of both runs


def test_a_job_whose_key_changed_starts_again_and_any_other_resumes(tmp_path: Path, failing: dict[str, int]) -> None:
    job = JOBS[1]
    for key, kept in (("key of a", True), ("another", False)):
        failing["a"] = 1
        with pytest.raises(UserError):
            runner(tmp_path, [job]).run([job], quiet)
        (tmp_path / "a" / "half_done").write_text("")
        failing.clear()
        again = runner(tmp_path, [job])
        again.keys = {"a": key}
        again.run([job], quiet)
        assert (tmp_path / "a" / "half_done").exists() == kept
        assert record(tmp_path, "a")["seconds"] == (4.0 if kept else 2.0)
        (tmp_path / "a" / "job.json").unlink()
        assert "resume=auto" in Pretended.started[-1]


def test_a_job_whose_result_was_cut_off_runs_again(tmp_path: Path) -> None:
    jobs = JOBS[1:3]
    runner(tmp_path, jobs).run(jobs, quiet)
    (tmp_path / "a" / "metrics.json").write_text('{"steps": 6')
    Pretended.started.clear()
    runner(tmp_path, jobs).run(jobs, quiet)
    assert [words[-2:] for words in Pretended.started] == [[f"hydra.run.dir={tmp_path}/a", "resume=auto"]]


def test_a_folder_may_have_signs_of_hydras_grammar(tmp_path: Path) -> None:
    runs = tmp_path / "copy (1), x=y’s" / "it's"
    read = Job("read", "recl", ("checkpoints=[@runs/a/best.ckpt,@runs/b/best.ckpt]", "data_path=@runs/../c.txt"), "x")
    runner(runs, [read]).run([read], quiet)
    parsed = [word.value() for word in OverridesParser.create().parse_overrides(Pretended.started[0][1:])]
    assert [str(path) for path in parsed[0]] == [f"{runs}/{name}/best.ckpt" for name in "ab"]
    assert [str(path) for path in parsed[1:]] == [f"{runs.parent}/c.txt", f"{runs}/read"]
