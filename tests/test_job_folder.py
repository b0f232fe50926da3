"""Folders of jobs: identity, record, result, the choice of a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from txl_lightning.errors import UserError
from txl_lightning.job_folder import JobFolder

OPTIONS = {"seed": 1, "optimizer.lr": 0.001}


def test_a_folder_of_another_job_is_refused(tmp_path: Path) -> None:
    job = JobFolder(tmp_path / "0")
    job.begin(["seed=1"], OPTIONS)
    job.begin(["typed another way"], OPTIONS)
    assert job.record["overrides"] == ["seed=1"]
    with pytest.raises(UserError, match="holds another job: "):
        job.begin(["seed=2"], {"seed": 2, "optimizer.lr": 0.001})


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    with pytest.raises(UserError, match="holds a run that does not belong to this multirun"):
        JobFolder(tmp_path).begin([], OPTIONS)
