"""A multirun started again into its folder: finished jobs are skipped, stopped ones resume, the rest runs."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from tests.in_process import Ended, run_txl, success
from tests.training.small_run import TEXT, TINY
from txl_lightning.command_line.multirun import write_results
from txl_lightning.errors import UserError
from txl_lightning.jobs import JobFolder, choose_folders, refuse_another_text

SHORT = ("trainer.max_steps=6", "trainer.val_every_n_steps=3", "evaluation.max_segments=2")


def words(directory: Path, *arguments: str) -> list[str]:
    """Return the words of `txl train -m` on a small text; its folder is `sweep`."""
    directory.mkdir(exist_ok=True)
    (directory / "text.txt").write_text(TEXT)
    paths = (f"data.path={directory / 'text.txt'}", f"data.cache_dir={directory.parent / 'cache'}")
    return ["train", "-m", *TINY, *SHORT, *paths, f"hydra.sweep.dir={directory / 'sweep'}", *arguments]


def txl(directory: Path, *arguments: str, launcher: str = "basic") -> Ended:
    return success(*words(directory, f"hydra/launcher={launcher}", *arguments), directory=directory)


def results(directory: Path) -> dict:
    return json.loads((directory / "sweep/multirun.json").read_text())


def written(directory: Path) -> dict[str, int]:
    """When the result of each job was written."""
    return {path.parent.name: path.stat().st_mtime_ns for path in (directory / "sweep").glob("*/metrics.json")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three jobs that nothing interrupted."""
    directory = tmp_path_factory.mktemp("whole")
    done = txl(directory, "seed=1,2,3")
    path = directory / "sweep/multirun.md"
    assert done.out.endswith(f"{path.read_text()}{path}\n")
    return directory


FOREIGN = (
    *({"options": value} for value in ([1], 3, None)),
    *({"overrides": value} for value in (5, [1], None)),
    *({"objective": value} for value in ([1], {}, 5)),
    {"objective": "val/nll", "overrides": ["seed=1"], "options": {"data.name": "nosuch"}},
)
FOREIGN_RESULTS = (
    {"val/nll": 1.0, "val/ppl": "x"},
    {"val/nll": 1.0, "ended_by": 5},
    *({"val/nll": 1.0, "corpus": value} for value in ([1], None, "x")),
)


@pytest.mark.parametrize("record", FOREIGN, ids=str)
@pytest.mark.parametrize("result", FOREIGN_RESULTS, ids=str)
def test_a_folder_with_files_of_something_else_is_no_job(tmp_path: Path, record: dict, result: dict) -> None:
    job = JobFolder(tmp_path / "0")
    job.path.mkdir()
    for name, content in (("job.json", record), ("metrics.json", result), ("config.yaml", {})):
        (job.path / name).write_text(json.dumps(content))
    assert write_results(tmp_path) == tmp_path / "multirun.md"
    assert choose_folders(tmp_path, [(job.path, {"seed": 2})]) == [tmp_path / "1"]
    for begin in (
        lambda: job.begin({"objective": "val/nll", "overrides": [], "options": {"seed": 2}}),
        lambda: refuse_another_text(tmp_path, OmegaConf.create({"data": {"name": "nosuch"}})),
    ):
        with suppress(UserError):
            begin()


@pytest.mark.slow
def test_jobs_of_another_text_are_never_in_one_table(tmp_path: Path) -> None:
    """Of the same multirun, of a larger one, and of one whose text changes before its last job; for both launchers."""
    given = words(tmp_path)
    text = tmp_path / "text.txt"
    success(*given, "hydra/launcher=basic", "seed=1")
    table = (tmp_path / "sweep/multirun.md").read_text()
    original = text.read_text()
    text.write_text(original.replace("line 0", "LINE 0"))  # as long as before
    refused = f"{tmp_path}/sweep/0 is of another text than data=file is now: choose another hydra.sweep.dir, or delete"
    for launcher in ("basic", "process"):
        for more in (["seed=1"], ["seed=2,3"], ["seed=1", "data.segment_len=4"]):
            done = run_txl(*given, f"hydra/launcher={launcher}", *more)
            assert (done.status > 0, refused in done.err) == (True, True), done.err
            assert launcher == "basic" or (done.status, len(done.err.splitlines())) == (2, 1)
    assert not list(tmp_path.glob("sweep/*/metrics.json"))[1:]
    text.write_text(original)
    assert f"{tmp_path}/sweep/0 has finished before" in run_txl(*given, "hydra/launcher=basic", "seed=1").out
    assert (tmp_path / "sweep/multirun.md").read_text() == table
    text.write_text(original.replace("line 0", "LINE 0"))  # other options of the text are another column of the table
    more = ("seed=1", "data.level=char", "hydra.sweep.subdir=char")
    success(*given, "hydra/launcher=basic", *more)


def test_results_are_sorted_by_loss_with_the_overrides_that_differ(whole: Path) -> None:
    found = results(whole)
    assert found["objective"] == "val/nll"
    metrics = [json.loads((whole / f"sweep/{job['job']}/metrics.json").read_text()) for job in found["jobs"]]
    assert [job["objective"] for job in found["jobs"]] == sorted(values["val/nll"] for values in metrics)
    assert {job["job"]: job["overrides"] for job in found["jobs"]} == {str(i): {"seed": str(i + 1)} for i in range(3)}
    shown = ("steps", *(f"{split}/{unit}" for split in ("val", "test") for unit in ("nll", "bpb")))
    assert [job["metrics"] for job in found["jobs"]] == [{name: values[name] for name in shown} for values in metrics]
    lines = (whole / "sweep/multirun.md").read_text().splitlines()
    assert lines[0] == "| job | seed | val bpb | test bpb | state |"
    best = found["jobs"][0]
    losses = f"{metrics[0]['val/bpb']:.4f} | {metrics[0]['test/bpb']:.4f}"
    assert lines[2] == f"| {best['job']} | {best['overrides']['seed']} | {losses} | finished |"


def test_word_pieces_have_bits_per_byte_to_compare_them_with_bytes(tmp_path: Path) -> None:
    of_bytes = {"val/bpb": 2.0, "test/bpb": 2.0}
    of_pieces = {"val/ppl": 9.0, "val/bpb": 1.5, "test/ppl": 9.0, "test/bpb": 1.5}
    for level, metrics in {"byte": of_bytes, "bpe": of_pieces}.items():
        job = JobFolder(tmp_path / "both" / str(int(level == "bpe")))
        job.begin({"objective": "val/bpb", "overrides": [f"data.level={level}"], "options": {"data.level": level}})
        (job.path / "metrics.json").write_text(json.dumps(metrics))
    lines = write_results(tmp_path / "both").read_text().splitlines()
    assert lines[0] == "| job | data.level | val ppl | val bpb | test ppl | test bpb | state |"
    assert lines[2] == "| 1 | bpe | 9.0000 | 1.5000 | 9.0000 | 1.5000 | finished |"
    assert lines[3] == "| 0 | byte | – | 2.0000 | – | 2.0000 | finished |"
    jobs = json.loads((tmp_path / "both/multirun.json").read_text())["jobs"]
    assert [job["metrics"] for job in jobs] == [of_pieces, of_bytes]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["basic", pytest.param("submitit_local", marks=pytest.mark.full)])
def test_finished_jobs_are_skipped_and_stopped_ones_resume(tmp_path: Path, whole: Path, launcher: str) -> None:
    """Job 0 has finished, job 1 was killed after its last checkpoint, job 2 before its first."""
    txl(tmp_path, "seed=1,2")
    before = written(tmp_path)
    (tmp_path / "sweep/1/metrics.json").unlink()
    again = txl(tmp_path, "seed=1,2,3", launcher=launcher)
    assert written(tmp_path)["0"] == before["0"]
    if launcher == "basic":
        assert f"resume=auto: resuming from {tmp_path}/sweep/1/checkpoints/last.ckpt" in again.err
        assert "sweep/2" not in again.err
    assert results(tmp_path) == results(whole)
    assert (tmp_path / "sweep/multirun.md").read_text() == (whole / "sweep/multirun.md").read_text()


@pytest.mark.full
def test_the_launcher_finds_jobs_by_their_options_and_gives_new_ones_a_folder(tmp_path: Path) -> None:
    txl(tmp_path, "seed=1,2")
    before = written(tmp_path)
    assert run_txl(*words(tmp_path, "seed=3,1,2,-1")).status == 1
    assert written(tmp_path) == {**before, "4": written(tmp_path)["4"]}
    states = {job["overrides"]["seed"]: (job["job"], job["state"]) for job in results(tmp_path)["jobs"]}
    failed = ("3", "failed")
    assert states == {"1": ("0", "finished"), "2": ("1", "finished"), "3": ("4", "finished"), "-1": failed}
    (error,) = [job["error"] for job in results(tmp_path)["jobs"] if "error" in job]
    assert error == "seed=-1: must be an integer >= 0 and below 2^32"
