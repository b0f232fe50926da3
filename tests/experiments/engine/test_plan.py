"""Plan of a reproduction: its table and estimates, its jobs run once and again after a change."""

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from experiments.engine import plan as module
from experiments.engine.jobs import Job, composed
from experiments.engine.plan import Plan, in_order, make_slots
from experiments.engine.profiles import PROFILES, Setup
from tests.checkpoints.test_storage import OLD
from tests.data.helpers import files
from tests.fixtures import Patch
from txl_lightning.errors import UserError
from txl_lightning.evaluation.trained import read_checkpoint
from txl_lightning.files import file_checksum
from txl_lightning.jobs import Ended

JOBS = [
    Job("time", "speed", (), "x", alone=True),
    *(Job(name, "train", (), "x", sections=("s",)) for name in "abc"),
    Job("read", "evaluate", ("checkpoint=@runs/a/checkpoints/best.ckpt",), "x", needs=("a",)),
]


def plan_of(directory: Path, jobs: list[Job], *overrides: str, slots: int = 2, keys: str = "key of ") -> Plan:
    setup = Setup(PROFILES["smoke"], overrides, directory, sections=("table_6",), logger="none")
    return Plan(setup, jobs, {job.name: f"{keys}{job.name}" for job in jobs}, [{}] * slots)


def test_jobs_are_sorted_by_priority_and_measurements_come_right_after_what_they_need() -> None:
    runs = [Job(name, "train", (), "x") for name in ("last", "one", "two", "same")]
    measured = [Job(f"{run.name}-lengths", "evaluate", (), "x", needs=(run.name,)) for run in runs]
    both = Job("both", "recl", (), "x", needs=("two", "last"))
    after = Job("after", "recl", (), "x", needs=("one-lengths",))
    ranks = {"last": 9, "one": 1, "two": 2, "same": 2}
    names = [job.name for job in in_order([*runs, *measured, both, after], lambda job: (ranks[job.name],))]
    first = ["one", "one-lengths", "after", "two", "two-lengths", "same", "same-lengths"]
    assert names == [*first, "last", "last-lengths", "both"]
    assert in_order(runs, lambda job: ()) == runs


class Pretended:
    """A process that has ended after two seconds: with a result, unless its job is to fail."""

    started: ClassVar[list[list[str]]] = []
    failing: ClassVar[dict[str, int]] = {}

    def __init__(self, command: list[str], variables: dict[str, str], log: Path) -> None:
        words = command[command.index("txl_lightning.cli") + 1 :]
        folder = log.parent
        self.status = Pretended.failing.get(folder.name, 0)
        Pretended.started.append(words)
        if self.status >= 0:
            log.write_text("first line\nlast line\n")
        if not self.status:
            (folder / module.RESULTS.get(words[0], f"{words[0]}.json")).write_text("{}")

    def poll(self) -> Ended:
        return Ended(self.status, seconds=2.0)


@pytest.fixture
def failing(monkeypatch: Patch) -> dict[str, int]:
    """Exit status by name of the jobs that are to fail; all processes are pretended."""
    Pretended.started, Pretended.failing = [], {}
    monkeypatch.setattr(module, "Process", Pretended)
    return Pretended.failing


def record(directory: Path, name: str) -> dict[str, Any]:
    return json.loads((directory / "runs" / name / "job.json").read_text())


def test_a_finished_job_is_recorded_and_never_run_again(tmp_path: Path, failing: dict[str, int]) -> None:
    plan_of(tmp_path, JOBS).run()
    assert Pretended.started[-1][0] == "speed"  # alone, at the end
    evaluate = next(words for words in Pretended.started if words[0] == "evaluate")
    assert f"checkpoint={tmp_path}/runs/a/checkpoints/best.ckpt" in evaluate
    found = record(tmp_path, "a")
    files = {"metrics.json": file_checksum(tmp_path / "runs/a/metrics.json")}
    expected = {"options": "key of a", "done": True, "seconds": 2.0, "command": "txl train", "files": files}
    assert found == expected
    n = len(Pretended.started)
    plan_of(tmp_path, JOBS).run()
    assert len(Pretended.started) == n == len(JOBS)
    (tmp_path / "runs/a/metrics.json").write_text('{"steps": 6')  # cut off
    plan_of(tmp_path, JOBS).run()
    assert [words[-2:] for words in Pretended.started[n:]] == [[f"hydra.run.dir={tmp_path}/runs/a", "resume=auto"]]


RECORDS = ("", "null", "[]", "{}", '{"done": true}', '{"options": 5, "done": "yes"}')


@pytest.mark.parametrize(
    ("file", "content"),
    [
        *(("metrics.json", content) for content in ("", "{", "[]", '{"val/nll": 0.5}')),
        ("validation.jsonl", '{"steps": 1, "nll": 0.5}\n'),
        *(("job.json", content) for content in RECORDS),
    ],
)
def test_a_job_whose_files_changed_runs_again(tmp_path: Path, failing: dict[str, int], file: str, content: str) -> None:
    job = JOBS[1:2]
    plan_of(tmp_path, job).run()
    folder = tmp_path / "runs/a"
    kept = {path.name: path.read_text() for path in folder.iterdir()}
    (folder / file).write_text(content)
    (folder / "checkpoint").write_text("of the first time")
    plan = plan_of(tmp_path, job)
    assert (plan.finished, "0 of them finished before" in plan.summary()) == ([], True)
    plan.table()
    plan.run()
    assert len(Pretended.started) == 2
    assert {path.name: path.read_text() for path in folder.iterdir()} == kept
    assert plan.finished == job


def test_a_failed_job_is_named_and_it_and_what_needs_it_run_again(tmp_path: Path, failing: dict[str, int]) -> None:
    failing |= {"a": 3, "b": -9}
    with pytest.raises(UserError) as error:
        plan_of(tmp_path, JOBS).run()
    assert set(str(error.value).splitlines()) == {
        f"a ended with exit status 3: last line ({tmp_path}/runs/a/log.txt)",
        f"b was killed by SIGKILL: no output ({tmp_path}/runs/b/log.txt)",
        "read was not run: it needs a",
    }
    assert record(tmp_path, "a")["done"] is False
    failing.clear()
    Pretended.started.clear()
    plan_of(tmp_path, JOBS).run()
    assert sorted(words[0] for words in Pretended.started) == ["evaluate", "train", "train"]
    assert record(tmp_path, "a")["seconds"] == 4.0  # of both runs


@pytest.mark.parametrize(("keys", "kept"), [("key of ", True), ("another ", False)])
def test_a_job_with_another_key_starts_again(keys: str, kept: bool, tmp_path: Path, failing: dict[str, int]) -> None:
    failing["a"] = 1
    with pytest.raises(UserError):
        plan_of(tmp_path, JOBS[1:2]).run()
    (tmp_path / "runs/a/half_done").write_text("")
    failing.clear()
    plan_of(tmp_path, JOBS[1:2], keys=keys).run()
    assert (tmp_path / "runs/a/half_done").exists() == kept
    assert record(tmp_path, "a")["seconds"] == (4.0 if kept else 2.0)


def test_the_next_call_says_what_was_under_way(tmp_path: Path, failing: dict[str, int], monkeypatch: Patch) -> None:
    failing |= {"a": 1, "b": 1}
    with pytest.raises(UserError):
        plan_of(tmp_path, JOBS[1:3]).run()
    (tmp_path / "runs/b/checkpoints").mkdir()
    files(tmp_path / "runs/a", {"checkpoints/last.ckpt": OLD.read_bytes(), "validation.jsonl": '{"steps": 4}\n'})
    steps = read_checkpoint(OLD).step
    plan = plan_of(tmp_path, JOBS)
    monkeypatch.setattr(module, "composed", lambda overrides: composed(("profile=smoke", "trainer.max_steps=60")))
    _, *lines = plan.summary().splitlines()
    said = "was under way when the last call ended: "
    assert lines == [f"{said}a goes on from step {steps} of 60", f"{said}b starts again"]
    assert plan.steps(JOBS[1]) == (max(steps, 4), 60)
    assert "step" not in plan_of(tmp_path, JOBS, keys="another ").summary()


def test_a_folder_may_have_signs_of_hydras_grammar(tmp_path: Path, failing: dict[str, int]) -> None:
    folder = tmp_path / "copy (1), x=y’s" / "it's"
    read = Job("read", "recl", ("checkpoints=[@runs/a/best.ckpt,@runs/b/best.ckpt]", "data_path=@runs/../c.txt"), "x")
    plan_of(folder, [read]).run()
    words = [word for word in Pretended.started[0][1:] if "num_threads" not in word]
    parsed = [word.value() for word in OverridesParser.create().parse_overrides(words)]
    assert [str(path) for path in parsed[0]] == [f"{folder}/runs/{name}/best.ckpt" for name in "ab"]
    assert [str(path) for path in parsed[1:]] == [f"{folder}/c.txt", f"{folder}/runs/read"]


def test_a_plan_shows_every_job_and_the_sum_of_their_times(tmp_path: Path, monkeypatch: Patch) -> None:
    """Two jobs at once need half the time, a measurement that runs alone all of its own."""
    monkeypatch.setattr(module, "tokens_read", lambda job: 1_000_000)
    monkeypatch.setattr(module, "cores", lambda: 2)
    planned = plan_of(tmp_path, JOBS[:4])
    metrics = '{"tokens": 50000, "seconds": 2.0}'  # 25,000 tokens/s
    files(tmp_path / "runs/a", {"job.json": '{"options": "key of a", "done": true}', "metrics.json": metrics})
    lines = planned.table().splitlines()
    assert [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:6]] == [
        ["time", "speed", "", "", "6 s"],
        ["a", "train", "1,000,000 tokens", "s", "finished"],
        ["b", "train", "1,000,000 tokens", "s", "44 s"],  # 4 and 1,000,000 / 25,000
        ["c", "train", "1,000,000 tokens", "s", "44 s"],
    ]
    assert lines[7] == "left: about 50 s, 2 jobs at once, at 25,000 tokens/s"
    assert planned.summary().startswith("profile smoke: 4 jobs, 1 of them finished before, 2 at once, into ")


def test_jobs_at_once_have_gpus_of_their_own(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,7")
    gpus = [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in "357"]
    for parallel, slots in {None: gpus, 2: gpus[:2], 1: [{}]}.items():
        assert make_slots(Setup(PROFILES["gpu"], (), tmp_path, parallel=parallel)) == slots
    assert make_slots(Setup(PROFILES["smoke"], (), tmp_path, parallel=5)) == [{}] * 5
    with pytest.raises(UserError, match="--parallel 4: needs 4 GPUs, 3 are visible"):
        make_slots(Setup(PROFILES["gpu"], (), tmp_path, parallel=4))
