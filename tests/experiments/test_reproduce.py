"""The command as users call it: from nothing, interrupted, called again, and with bad input."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from experiments import reproduce
from experiments.engine.plan import Plan
from experiments.engine.profiles import PROFILES
from tests import wandb_files
from tests.docs.pages import ROOT
from tests.experiments.tables.sample_outcomes import small_corpus
from tests.fixtures import Output, Patch
from txl_lightning.files import locked

NOWHERE = "http://127.0.0.1:9"
SMALL = ["--profile=smoke", "--only=table_7", "--logger=csv", "--parallel=1"]


def read(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "results.json").read_text())


@pytest.mark.full
@pytest.mark.timeout(1500)
def test_from_nothing_to_a_report(tmp_path: Path) -> None:
    """With only PATH, HOME and an unreachable network in the environment."""
    directory = tmp_path / "report"
    words = [sys.executable, "-m", "experiments.reproduce", "--profile=smoke"]
    words += [f"--directory={directory}", "trainer.max_steps=20", "trainer.val_every_n_steps=10"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    environment.update(dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), NOWHERE))
    done = subprocess.run(
        words,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == f"report: {directory}/report.html"
    results = read(directory)
    assert results["finished"]
    assert [section["id"] for section in results["sections"]] == list(reproduce.SECTIONS)
    assert all(claim["rows"] for claim in results["claims"])
    assert not re.search(
        r"""(src|href)=["'](https?:)?//""", (directory / "report.html").read_text()
    )
    for section in results["sections"]:
        for figure in section.get("figures", []):
            assert (directory / figure["png"]).stat().st_size > 5000
    for name in results["runs"]:
        assert len(wandb_files.run_files(directory / "runs" / name)) == 1, name


@pytest.mark.slow
def test_a_section_makes_a_report_and_nothing_runs_twice(tmp_path: Path, capsys: Output) -> None:
    directory = tmp_path / "report"
    words = [
        *SMALL,
        f"--directory={directory}",
        *small_corpus(tmp_path),
    ]
    words += ["trainer.max_steps=4", "trainer.val_every_n_steps=2"]
    seconds_of_preparation = 1000.0
    assert reproduce.main(words, started=time.monotonic() - seconds_of_preparation) == 0
    results = read(directory)
    assert [section["id"] for section in results["sections"]] == ["table_7"]
    assert results["seconds"]["wall"] > seconds_of_preparation
    assert results["seconds"]["calls"] == 1
    assert len(results["corpora"]) == 1
    told = capsys.readouterr().err
    assert "profile smoke: 0 of 4 jobs finished before, 1 at once, into" in told
    for name in results["runs"]:
        assert f"{name}: started" in told
        assert f"{name}: done in" in told
    files = list(directory.glob("runs/*/*.json"))
    before = [path.stat().st_mtime_ns for path in files]
    assert reproduce.main(words) == 0
    assert "profile smoke: 4 of 4 jobs finished before" in capsys.readouterr().err
    assert [path.stat().st_mtime_ns for path in files] == before
    again = read(directory)
    assert again["sections"] == results["sections"]
    assert again["seconds"] == results["seconds"]


def test_an_interrupted_reproduction_says_how_it_continues(
    tmp_path: Path, monkeypatch: Patch, capsys: Output
) -> None:
    monkeypatch.setattr(Plan, "run", Mock(side_effect=KeyboardInterrupt))
    directory = tmp_path / "report"
    assert (
        reproduce.main(
            [
                *SMALL,
                f"--directory={directory}",
                *small_corpus(tmp_path),
            ]
        )
        == 130
    )
    command = "python -m experiments.reproduce --profile=smoke"
    assert f"continues from here: {command}" in capsys.readouterr().err
    assert not read(directory)["finished"]
    assert f"The same command continues: {command}" in (directory / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--only", "table_99"], "--only table_99: may contain only main_results, table_6"),
        (["--profile=huge"], "invalid choice: 'huge'"),
        (["--parallel", "0"], "--parallel 0: must be an integer >= 1"),
        (["memory.mem_length=4"], "mem_length"),
        (["data.path=nowhere.txt"], "nowhere.txt"),
        (["optimizer.lr=-1"], "optimizer.lr=-1"),
    ],
)
def test_bad_input_is_named(tmp_path: Path, capsys: Output, words: list[str], named: str) -> None:
    where = [
        *SMALL,
        "--directory",
        str(tmp_path),
        *small_corpus(tmp_path),
    ]
    try:
        status = reproduce.main([*where, *words])
    except SystemExit as ended:  # of argparse
        status = ended.code
    assert status == 2
    assert named in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_folder_into_which_another_command_writes_is_refused(
    tmp_path: Path, capsys: Output
) -> None:
    with locked(tmp_path):
        assert (
            reproduce.main(
                [
                    *SMALL,
                    "--directory",
                    str(tmp_path),
                ]
            )
            == 2
        )
    assert f"{tmp_path}: another command writes into this folder" in capsys.readouterr().err


def test_a_plan_needs_no_corpus_and_writes_nothing(tmp_path: Path, capsys: Output) -> None:
    where = [
        "--directory",
        str(tmp_path / "r"),
        f"data.cache_dir={tmp_path}/cache",
    ]
    assert (
        reproduce.main(
            [
                "--profile",
                "gpu",
                "--only",
                "main_results",
                "--plan",
                *where,
            ]
        )
        == 0
    )
    plan = capsys.readouterr().out
    assert "recurrence-relative-full_loss-seed1" in plan
    assert "needs: one GPU" in plan
    assert re.search(r"about \S+ h of one job at a time", plan)
    assert not list(tmp_path.iterdir())


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_table_6_on_a_gpu_runs_at_tiny_sizes_on_the_cpu(tmp_path: Path, monkeypatch: Patch) -> None:
    evaluate = ("batch_size=2", "max_segments=2", "sweep_tokens=200")
    short = replace(
        PROFILES["gpu_short"],
        evaluate=evaluate,
        attention_lengths=(8, 12),
    )
    monkeypatch.setitem(PROFILES, "gpu_short", short)
    words = ["--profile=gpu_short", "--only=table_6", f"--directory={tmp_path / 'r'}"]
    tiny = [
        "trainer=cpu",
        "model=txl_smoke",
        "data.batch_size=4",
        "data.segment_len=8",
        "trainer.max_steps=4",
        "trainer.val_every_n_steps=4",
        "optimizer.warmup_steps=1",
        "evaluation.batch_size=2",
    ]
    assert (
        reproduce.main(
            [
                *words,
                "--logger=none",
                *small_corpus(tmp_path),
                *tiny,
            ]
        )
        == 0
    )
    assert read(tmp_path / "r")["finished"]
