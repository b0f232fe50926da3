"""Plan of a reproduction: its jobs run once, and again after a change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from experiments.engine import plan as module
from experiments.engine.jobs import Job
from experiments.engine.plan import RESULTS, Plan
from experiments.engine.profiles import PROFILES, Setup
from tests.fixtures import Patch
from txl_lightning.errors import UserError

A, B = (Job(name, "train", ("profile=smoke",), "x") for name in "ab")
READ = Job("read", "evaluate", (f"checkpoint={A.checkpoint}",), "x", needs=("a",))
TIME = Job("time", "speed", (), "x", alone=True)


def plan_of(folder: Path, *jobs: Job, keys: str = "key of ") -> Plan:
    setup = Setup(
        PROFILES["smoke"],
        (),
        folder,
        sections=("table_6",),
        logger="none",
    )
    identities = {job.name: {"key": f"{keys}{job.name}"} for job in jobs}
    return Plan(setup, list(jobs), identities, parallel=2)


def run(plan: Plan) -> None:
    plan.run(lambda: None)


class Pretended:
    """A process that has ended after two seconds: with a result, unless its job is to fail."""

    started: ClassVar[list[list[str]]] = []
    failing: ClassVar[dict[str, int]] = {}

    def __init__(
        self, words: list[str], folder: Path, variables: dict[str, str], has_log: bool
    ) -> None:
        self.returncode = Pretended.failing.get(folder.name, 0)
        self.seconds = 2.0
        Pretended.started.append(words)
        (folder / "log.txt").write_text("first line\nlast line\n")
        if self.returncode == 0:
            (folder / RESULTS.get(words[0], f"{words[0]}.json")).write_text('{"steps": 6}')

    def poll(self) -> int:
        return self.returncode

    def kill_group(self) -> None:
        """Nothing is left."""


@pytest.fixture
def failing(monkeypatch: Patch) -> dict[str, int]:
    """Exit status by name of the jobs that are to fail; all processes are pretended."""
    Pretended.started = []
    Pretended.failing = {}
    monkeypatch.setattr(module, "start_job", Pretended)
    return Pretended.failing


def record(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / "runs" / name / "job.json").read_text())


@pytest.mark.usefixtures("failing")
def test_a_finished_job_is_recorded_and_never_run_again(tmp_path: Path) -> None:
    jobs = (TIME, A, B, READ)
    run(plan_of(tmp_path, *jobs))
    commands = [words[0] for words in Pretended.started]
    assert sorted(commands[:3]) == [
        "evaluate",
        "train",
        "train",
    ]
    assert commands[3] == "speed"  # alone, at the end
    expected = {"options": {"key": "key of a"}, "done": True, "seconds": 2.0}
    assert record(tmp_path, "a") == expected
    run(plan_of(tmp_path, *jobs))
    assert len(Pretended.started) == len(jobs)


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize(
    ("file", "content"),
    [("metrics.json", '{"steps": 6'), ("job.json", ""), ("job.json", '{"done": true}')],
)
def test_a_job_with_a_damaged_file_runs_again(tmp_path: Path, file: str, content: str) -> None:
    run(plan_of(tmp_path, A))
    (tmp_path / "runs/a" / file).write_text(content)
    (tmp_path / "runs/a/checkpoint").write_text("of the first time")
    plan = plan_of(tmp_path, A)
    assert plan.finished() == set()
    run(plan)
    assert plan.finished() == {"a"}
    assert not (tmp_path / "runs/a/checkpoint").exists()


def test_a_failed_job_is_named_and_runs_again_with_what_needs_it(
    tmp_path: Path, failing: dict[str, int]
) -> None:
    failing["a"] = 3
    failing["b"] = -9
    with pytest.raises(UserError) as error:
        run(plan_of(tmp_path, A, B, READ))
    assert set(str(error.value).splitlines()) == {
        f"a ended with exit status 3: last line ({tmp_path}/runs/a/log.txt)",
        f"b was killed by SIGKILL: last line ({tmp_path}/runs/b/log.txt)",
        "read was not run: it needs a",
    }
    assert not record(tmp_path, "a")["done"]
    failing.clear()
    run(plan_of(tmp_path, A, B, READ))
    assert len(Pretended.started) == 2 + 3
    assert record(tmp_path, "a")["seconds"] == 4.0  # of both runs


@pytest.mark.parametrize(("keys", "is_kept"), [("key of ", True), ("another ", False)])
def test_a_stopped_job_goes_on_unless_it_is_another(
    keys: str, is_kept: bool, tmp_path: Path, failing: dict[str, int]
) -> None:
    failing["a"] = 1
    with pytest.raises(UserError):
        run(plan_of(tmp_path, A))
    (tmp_path / "runs/a/half_done").write_text("")
    failing.clear()
    run(plan_of(tmp_path, A, keys=keys))
    assert (tmp_path / "runs/a/half_done").exists() == is_kept
    assert record(tmp_path, "a")["seconds"] == (4.0 if is_kept else 2.0)
    assert "resume=auto" in Pretended.started[-1]


@pytest.mark.usefixtures("failing")
def test_a_folder_may_have_signs_of_hydras_grammar(tmp_path: Path) -> None:
    folder = tmp_path / "copy (1), x=y’s ${z}" / "it's"
    words = ("checkpoints=[@runs/a/best.ckpt,@runs/b/best.ckpt]", "data_path=@runs/../c.txt")
    run(
        plan_of(
            folder,
            Job("read", "recl", words, "x"),
        )
    )
    words_of_call = Pretended.started[0][1:]
    overrides = OverridesParser.create().parse_overrides(words_of_call)
    values = {override.key_or_group: override.value() for override in overrides}
    runs = str(folder / "runs").replace("${", r"\${")
    assert [str(path) for path in values["checkpoints"]] == [
        f"{runs}/a/best.ckpt",
        f"{runs}/b/best.ckpt",
    ]
