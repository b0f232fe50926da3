"""Folder of a job: its record, its lock, and the folder that each job of a multirun gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from txl_lightning.errors import UserError
from txl_lightning.jobs import folder
from txl_lightning.jobs.folder import JobFolder, choose_folders

OPTIONS = {"seed": 1, "optimizer.lr": 0.001}


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


def test_a_job_runs_in_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "LOCK_SECONDS", 0.2)
    job = JobFolder(tmp_path / "0")
    for wait in (False, True):
        with job.locked(), pytest.raises(UserError, match="0: another command writes into"), job.locked(wait):
            pass


def test_a_cut_off_result_is_none_and_clearing_keeps_the_lock(tmp_path: Path) -> None:
    job = JobFolder(tmp_path, "job.json", "recl.json")
    assert (job.record, job.result) == ({}, None)
    for content in ("{", "[]"):
        (tmp_path / "recl.json").write_text(content)
        assert job.result is None
    job.write({"key": "k"})
    (tmp_path / "recl.json").write_text('{"recl": 3}')
    assert (job.record, job.result) == ({"key": "k"}, {"recl": 3})
    (tmp_path / "figures").mkdir()
    with job.locked():
        job.clear()
        assert [path.name for path in tmp_path.iterdir()] == [folder.LOCK]
