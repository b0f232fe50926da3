"""The command as users call it: from nothing, interrupted, called again, and with bad input."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from experiments import reproduce
from experiments.arms import OFF, ON
from experiments.engine.jobs import Job
from experiments.engine.plan import COMMANDS_WITH_LOGGER, Plan, tokens_read
from experiments.engine.profiles import PROFILES
from tests import wandb_files
from tests.docs.pages import ROOT
from tests.experiments.tables.sample_outcomes import small_corpus
from tests.fixtures import Output, Patch
from txl_lightning.files import locked

REPRODUCE = [sys.executable, "-m", "experiments.reproduce"]
NOWHERE = {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9", "ALL_PROXY": "http://127.0.0.1:9"}


def call(*words: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Run the command with only PATH, HOME and an unreachable network in its environment."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), **NOWHERE}
    return subprocess.run([*REPRODUCE, *words], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)


def read(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "results.json").read_text())


@pytest.mark.full
@pytest.mark.timeout(1500)
def test_from_nothing_to_a_report(tmp_path: Path) -> None:
    directory = tmp_path / "report"
    words = ["--profile=smoke", f"--directory={directory}", "trainer.max_steps=20", "trainer.val_every_n_steps=10"]
    done = call(*words, home=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == f"report: {directory}/report.html"
    results = read(directory)
    assert (results["finished"], [section["id"] for section in results["sections"]]) == (True, [*reproduce.SECTIONS])
    assert all(claim["rows"] for claim in results["claims"])
    assert results["corpora"][0]["name"].startswith("sympy ")
    assert not re.search(r"""(src|href)=["'](https?:)?//""", (directory / "report.html").read_text())
    for section in results["sections"]:
        assert section["title"] in (directory / "report.md").read_text()
        for figure in section.get("figures", []):
            assert (directory / figure["png"]).stat().st_size > 5000
    for name, run in results["runs"].items():
        files = wandb_files.run_files(directory / "runs" / name)
        assert len(files) == (run["command"] in COMMANDS_WITH_LOGGER), name
    (report,) = wandb_files.run_files(directory)
    assert wandb_files.artifacts(report)["report"]["name"] == "report-smoke"


SMALL = ["--profile", "smoke", "--only", "table_7", "--logger", "csv", "--parallel", "1"]


def test_a_section_makes_a_report_and_nothing_runs_twice(tmp_path: Path, capsys: Output) -> None:
    directory = tmp_path / "report"
    steps = ["trainer.max_steps=4", "trainer.val_every_n_steps=2"]
    words = [*SMALL, "--directory", str(directory), *steps, *small_corpus(tmp_path)]
    seconds_of_preparation = 1000.0
    assert reproduce.main(words, started=time.monotonic() - seconds_of_preparation) == 0
    results = read(directory)
    assert [section["id"] for section in results["sections"]] == ["table_7"]
    for name, run in results["runs"].items():
        assert run["seconds"] == json.loads((directory / "runs" / name / "job.json").read_text())["seconds"] > 0
    training = sum(run["seconds"] for run in results["runs"].values() if run["command"] == "train")
    assert results["seconds"]["wall"] > seconds_of_preparation
    assert results["seconds"]["training"] == pytest.approx(training, abs=0.1)
    assert len(results["corpora"]) == 1
    told = capsys.readouterr().err
    *prepared, planned = told.partition("report while it runs")[0].splitlines()
    expected = ("profile smoke: options", "corpus file: read", "jobs of table_7")
    assert all(f"preparing: {words}" in line for words, line in zip(expected, prepared, strict=False))
    of_4 = r"profile smoke: 4 jobs, 0 of them finished before, 1 at once, into .*: about \d+ s left"
    assert re.fullmatch(of_4, planned)
    for name, run in results["runs"].items():
        step = "step 0 of 4, " if run["command"] == "train" else ""
        assert re.search(rf"^{name}: {step}about \d+ s left$", told, re.MULTILINE)
    before = {path: path.stat().st_mtime_ns for path in directory.glob("runs/*/metrics.json")}
    assert reproduce.main(words) == 0
    assert f"4 jobs, {len(results['runs'])} of them finished before" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in directory.glob("runs/*/metrics.json")} == before
    again = read(directory)
    assert again["sections"] == results["sections"]
    assert again["seconds"]["wall"] == results["seconds"]["wall"]  # nothing ran


def test_an_interrupted_reproduction_says_how_it_continues(tmp_path: Path, monkeypatch: Patch, capsys: Output) -> None:
    monkeypatch.setattr(Plan, "run", Mock(side_effect=KeyboardInterrupt))
    assert reproduce.main([*SMALL, "--directory", str(tmp_path / "report"), *small_corpus(tmp_path)]) == 130
    assert "continues from here: make reproduce PROFILE=smoke" in capsys.readouterr().err
    results = read(tmp_path / "report")
    assert (results["finished"], results["jobs"]) == (False, {"finished": 0, "planned": 4})
    assert "To continue: make reproduce PROFILE=smoke" in (tmp_path / "report/report.html").read_text()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--only", "table_99"], "--only table_99: must be of main_results, table_6"),
        (["--profile=huge"], "invalid choice: 'huge'"),
        (["--parallel", "0"], "--parallel 0: must be an integer >= 1"),
        (["--prefix", "srun 'a"], "argument --prefix: invalid"),
        (["memory.mem_length=4"], "mem_length"),
        (["data=file", "data.path=nowhere.txt"], "nowhere.txt"),
        (["optimizer.lr=-1"], "optimizer.lr=-1"),
    ],
)
def test_bad_input_is_named(tmp_path: Path, capsys: Output, words: list[str], named: str) -> None:
    where = [*SMALL, "--directory", str(tmp_path), *small_corpus(tmp_path)]
    try:
        status = reproduce.main([*where, *words])
    except SystemExit as ended:  # of argparse
        status = ended.code
    assert (status, named in capsys.readouterr().err, (tmp_path / "runs").exists()) == (2, True, False)


def test_a_folder_into_which_another_command_writes_is_refused(tmp_path: Path, capsys: Output) -> None:
    with locked(tmp_path):
        assert reproduce.main([*SMALL, "--directory", str(tmp_path)]) == 2
    assert f"{tmp_path}: another command writes into this folder" in capsys.readouterr().err


def test_a_plan_needs_no_corpus_and_writes_nothing(tmp_path: Path, capsys: Output, monkeypatch: Patch) -> None:
    monkeypatch.delenv("TXL_DATA", raising=False)
    where = ["--directory", str(tmp_path / "r"), f"data.cache_dir={tmp_path}/cache"]
    assert reproduce.main(["--profile", "gpu", "--only", "main_results", "--plan", *where]) == 0
    plan = capsys.readouterr().out
    assert "recurrence-relative-full_loss-seed1" in plan
    assert re.search(r"left: about [\d.]+ (s|min|h|days)", plan)
    assert "needs: " in plan
    assert "TXL_DATA: enwik8_base, text8_base, lm1b_base_paper\n" in plan
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_table_6_on_a_gpu_is_planned_for_twenty_minutes(tmp_path: Path) -> None:
    where = ["--profile", "gpu_short", "--only", "table_6", "--directory", str(tmp_path), f"data.cache_dir={tmp_path}"]
    planned = reproduce.plan(reproduce.parse([*where, "--plan"]))
    tokens = [tokens_read(job) for job in planned.jobs if job.command == "train"]
    assert len(tokens) == 13
    assert min(tokens) >= 40_000_000
    assert sum(map(planned.seconds, planned.jobs)) <= 20 * 60


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_table_6_on_a_gpu_runs_at_tiny_sizes_on_the_cpu(tmp_path: Path, monkeypatch: Patch) -> None:
    evaluate = ("batch_size=2", "max_segments=2", "sweep_tokens=200")
    short = replace(PROFILES["gpu_short"], evaluate=evaluate, attention_lengths=(8, 12))
    monkeypatch.setitem(PROFILES, "gpu_short", short)
    tiny = ["trainer=cpu", "model=txl_smoke", "data.batch_size=4", "data.segment_len=8", "trainer.max_steps=4"]
    tiny += ["trainer.val_every_n_steps=4", "optimizer.warmup_steps=1", "evaluation.batch_size=2"]
    where = ["--profile", "gpu_short", "--only", "table_6", "--directory", str(tmp_path / "r"), "--logger", "none"]
    assert reproduce.main([*where, *small_corpus(tmp_path), *tiny]) == 0
    results = read(tmp_path / "r")
    assert results["finished"]
    assert "pending" not in json.dumps(results["sections"])


def test_what_decides_a_claim_soonest_has_the_first_rank() -> None:
    """With and without recurrence, seed by seed; then in order of the claims."""
    pair = [Job("", "train", (), arm.title, seed) for seed in (1, 2) for arm in (ON, OFF)]
    others = [Job("", "train", (), "", 1, sections=used) for used in (("table_6", "table_10"), ("table_6",), ())]
    ranks = [reproduce.priority(job) for job in (*pair, *others)]
    assert ranks == sorted(ranks)
    assert len(set(ranks)) == 5


def test_the_command_of_a_setup_makes_the_same_report(tmp_path: Path) -> None:
    words = ["--only", "table_7", "--profile=smoke", "--prefix", "srun -n 2", "--directory", str(tmp_path), "seed=3"]
    setup = reproduce.parse(words)
    _, _, profile, arguments = shlex.split(setup.command)
    again = ["--profile", profile.removeprefix("PROFILE="), *shlex.split(arguments.removeprefix("ARGS="))]
    assert reproduce.parse(again) == setup
    assert (setup.sections, setup.overrides, setup.prefix) == (("table_7",), ("seed=3",), ("srun", "-n", "2"))
    assert reproduce.parse([]).command == "make reproduce PROFILE=laptop"
