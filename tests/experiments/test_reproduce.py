"""The one command, as users call it: from nothing, interrupted, called again, and with what cannot work."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import psutil
import pytest

from experiments import reproduce
from experiments.claims import claims
from experiments.report.rendering import check_results
from tests import wandb_files

ROOT = Path(__file__).parents[2]
REPRODUCE = [sys.executable, "-m", "experiments.reproduce"]
NOWHERE = {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9", "ALL_PROXY": "http://127.0.0.1:9"}


def call(*words: str, home: Path) -> subprocess.CompletedProcess[str]:
    """The command with nothing in its environment but PATH, HOME and a network that leads nowhere."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), **NOWHERE}
    return subprocess.run([*REPRODUCE, *words], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)


def read(directory: Path) -> dict[str, Any]:
    results: dict[str, Any] = json.loads((directory / "results.json").read_text())
    return results


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_from_nothing_to_a_report_and_again_at_once(tmp_path: Path) -> None:
    directory = tmp_path / "report"
    done = call("--profile", "smoke", "--directory", str(directory), home=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == f"report: {directory}/report.html"
    results = read(directory)
    check_results(results)
    assert [section["id"] for section in results["sections"]] == list(reproduce.SECTIONS)
    assert results["claims"] == claims.judged(results)
    assert len(results["claims"]) == 10
    assert results["corpora"][0]["name"].startswith("python-stdlib")
    page = (directory / "report.html").read_text()
    assert not re.search(r"""(src|href)=["'](https?:)?//""", page)
    for section in results["sections"]:
        assert section["title"] in page or section["title"].replace("'", "&#39;") in page
        assert section["title"] in (directory / "report.md").read_text()
        for figure in section.get("figures", []):
            assert (directory / figure["png"]).stat().st_size > 5000
    check_wandb(directory, results)

    ended = {path: path.stat().st_mtime_ns for path in directory.glob("runs/*/job.json")}
    again = call("--profile", "smoke", "--directory", str(directory), home=tmp_path)
    assert again.returncode == 0, again.stderr
    assert f"{len(ended)} of them finished before" in again.stderr
    assert ended == {path: path.stat().st_mtime_ns for path in directory.glob("runs/*/job.json")}
    assert read(directory)["sections"] == results["sections"]


def check_wandb(directory: Path, results: dict[str, Any]) -> None:
    """One offline run a job, grouped by table, with everything that a dashboard wants."""
    for name, run in results["runs"].items():
        files = wandb_files.run_files(directory / "runs" / name)
        assert len(files) == (run["command"] in reproduce.LOGGING), name
    trained = wandb_files.run_files(directory / "runs" / "recurrence-relative-full_loss-seed1")[0]
    names = {key for record in wandb_files.history(trained, "train/bpc") for key in record}
    measured = ("nll", "bpc", "learning_rate", "gradient_norm", "tokens_per_second", "memory_length")
    assert {f"train/{name}" for name in measured} | {"tokens"} <= names
    shown = json.dumps(wandb_files.summary(trained))
    assert "main_results" in shown
    assert "table_6" in shown
    assert "final/test/bpc" in shown
    assert wandb_files.artifacts(trained)["model"]
    recl = wandb_files.run_files(directory / "runs" / "recl-group1")[0]
    assert {row[0] for row in wandb_files.table(recl, "recl/table")["data"]} == {"Transformer-XL", "QRNN", "LSTM"}
    assert wandb_files.media(recl, "table", "recl/gains_r0.1_table")
    assert wandb_files.media(recl, "table", "recl/bpc_table")
    attention = wandb_files.run_files(directory / "runs" / "attention")[0]
    assert all(wandb_files.media(attention, "images", f"attention/{name}") for name in ("by_distance", "text", "terms"))
    (report,) = wandb_files.run_files(directory)
    assert wandb_files.artifacts(report)["report"]["name"] == "report-smoke"


SMALL = ["--profile", "smoke", "--only", "table_7", "--logger", "csv"]
STEPS = ["trainer.max_steps=150", "trainer.val_every_n_steps=50", "checkpoint.every_n_steps=10"]


def begin(directory: Path, home: Path) -> subprocess.Popen[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(home)}
    command = [*REPRODUCE, *SMALL, "--parallel", "1", "--directory", str(directory), *STEPS]
    return subprocess.Popen(command, cwd=ROOT, env=environment, text=True, stderr=subprocess.PIPE)


def wait_for(condition: Any, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def checkpoints(directory: Path) -> list[Path]:
    return list(directory.glob("runs/*/checkpoints/last.ckpt"))


def finished(directory: Path) -> dict[Path, int]:
    """Runs that ended, and when they wrote their metrics."""
    return {path: path.stat().st_mtime_ns for path in directory.glob("runs/*/metrics.json")}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_interrupted_and_killed_it_goes_on_and_ends_alike(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    done = begin(whole, tmp_path)
    errors = done.communicate(timeout=600)[1]
    assert done.returncode == 0, errors

    process = begin(broken, tmp_path)  # Ctrl-C in the first run
    wait_for(lambda: len(checkpoints(broken)) == 1)
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=120)[1]
    assert process.returncode == 130
    assert "goes on from here" in errors
    assert not finished(broken)

    process = begin(broken, tmp_path)  # kill -9 in the second
    wait_for(lambda: len(checkpoints(broken)) == 2)
    jobs = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    wait_for(lambda: not alive(jobs), 10)
    before = finished(broken)
    assert len(before) == 1

    done = begin(broken, tmp_path)
    errors = done.communicate(timeout=600)[1]
    assert done.returncode == 0, errors
    assert "1 of them finished before" in errors
    assert all(finished(broken)[path] == ended for path, ended in before.items())
    logs = [path.read_text() for path in broken.glob("runs/*/log.txt")]
    assert sum("resuming from" in log for log in logs) == 2
    assert read(broken)["sections"] == read(whole)["sections"]
    assert read(broken)["claims"] == read(whole)["claims"]
    first, second = read(whole)["runs"], read(broken)["runs"]
    assert {name: run["key"] for name, run in first.items()} == {name: run["key"] for name, run in second.items()}


@pytest.mark.slow
def test_what_cannot_work_is_said_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--profile", "smoke", "--only", "table_7", "--logger", "none", "--directory", str(tmp_path)]
    assert reproduce.main([*where, "memory.mem_length=4"]) == 2
    assert "mem_length" in capsys.readouterr().err
    assert reproduce.main([*where, "data=file", "data.path=nowhere.txt"]) == 2
    assert "nowhere.txt" in capsys.readouterr().err
    assert reproduce.main([*where, "optimizer.lr=-1", f"data.cache_dir={tmp_path}/cache"]) == 2
    assert "optimizer.lr=-1" in capsys.readouterr().err
    with reproduce.only_one(tmp_path):
        assert reproduce.main(where) == 2
    assert "another reproduction" in capsys.readouterr().err
    for words, named in ((["--only", "table_99"], "table_99"), (["profile=huge"], "huge"), (["--parallel", "0"], "0")):
        with pytest.raises(SystemExit) as ended:
            reproduce.main(words)
        assert ended.value.code == 2
        assert named in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--profile", "gpu"], ["profile=paper"], ["--profile", "smoke"]])
def test_a_plan_needs_no_corpus_and_writes_nothing(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TXL_DATA", raising=False)
    cache = f"data.cache_dir={tmp_path}/cache"
    assert reproduce.main([*words, "--plan", "--directory", str(tmp_path / "r"), cache]) == 0
    plan = capsys.readouterr().out
    assert "recurrence-relative-full_loss-seed1" in plan
    assert re.search(r"left: about [\d.]+ (s|min|h|days)", plan)
    assert "needs: " in plan
    assert not (tmp_path / "r").exists()


def test_the_page_is_html() -> None:
    class Tags(HTMLParser):
        depth = 0

        def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
            self.depth += tag == "section"

        def handle_endtag(self, tag: str) -> None:
            self.depth -= tag == "section"

    path = ROOT / "experiments" / "results" / "laptop" / "report.html"
    parser = Tags()
    parser.feed(path.read_text())
    assert parser.depth == 0
