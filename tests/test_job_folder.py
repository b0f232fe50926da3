"""Folders of jobs: identity, record, result, the choice of a folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from txl_lightning.errors import UserError
from txl_lightning.files import LOCK, locked
from txl_lightning.job_folder import JobFolder, choose_folder, identity

OPTIONS = {"seed": 1, "optimizer.lr": 0.001}


def test_options_that_only_say_how_a_job_runs_are_not_its_identity() -> None:
    options = {"seed": 1, "n": "${seed}", "data": {"root": "/a", "name": "b"}}
    options |= {"logger": {"name": "csv"}, "trainer": {"num_threads": 2}, "hydra": {"a": "???"}}
    found = identity(OmegaConf.create(options))
    assert found == {"seed": 1, "n": 1, "data.name": "b", "trainer.num_threads": 2}


def test_a_folder_of_another_job_is_refused(tmp_path: Path) -> None:
    job = JobFolder(tmp_path / "0")
    job.begin(["seed=1"], OPTIONS)
    job.begin(["typed another way"], OPTIONS)
    assert job.record["overrides"] == ["seed=1"]
    with pytest.raises(UserError, match="holds another job: "):
        job.begin(["seed=2"], {"seed": 2, "optimizer.lr": 0.001})


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    with pytest.raises(UserError, match="holds a run that is no job of this multirun"):
        JobFolder(tmp_path).begin([], OPTIONS)


def test_every_job_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    """Folders 0 and 1 hold the job with seed 1, folder 2 the one with seed 2."""
    for number, seed in enumerate((1, 1, 2)):
        JobFolder(tmp_path / str(number)).begin([], {"seed": seed})
    taken: set[Path] = set()
    chosen = []
    for number, seed in ((0, 2), (1, 1), (2, 1), (3, 1), (0, 5)):
        path = choose_folder(tmp_path, tmp_path / str(number), {"seed": seed}, taken)
        taken.add(path)
        chosen.append(path.name)
    assert chosen == ["2", "1", "0", "3", "4"]  # the folder of its options, the wanted one, the next free one


@pytest.mark.parametrize("content", ["", "{", "[]", "null"])
def test_a_cut_off_file_is_none_that_counts(tmp_path: Path, content: str) -> None:
    (tmp_path / "job.json").write_text(content)
    (tmp_path / "metrics.json").write_text(content)
    job = JobFolder(tmp_path)
    assert (job.record, job.result) == ({}, {})


def test_clearing_keeps_the_lock(tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    (tmp_path / "metrics.json").write_text(json.dumps({"val/nll": 1.0}))
    job = JobFolder(tmp_path)
    assert job.result == {"val/nll": 1.0}
    with locked(tmp_path):
        job.clear()
        assert [path.name for path in tmp_path.iterdir()] == [LOCK]
