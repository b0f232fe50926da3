"""`results.json`: every field of it, from jobs and result files, computed a second time."""

from __future__ import annotations

import json
import platform
import re
from importlib.metadata import version
from typing import Any

import pytest

from experiments.claims import judged
from experiments.engine.jobs import Job
from experiments.engine.profiles import Setup
from experiments.report.pages import write_report
from experiments.report.sections import Section
from experiments.reproduce import SECTIONS
from tests.experiments.report.written import check_results, read_sections
from txl_lightning.reporting.machine import cores, processor


def test_a_run_has_what_its_job_and_its_metrics_say(results: dict[str, Any], jobs: list[Job], finished: Setup) -> None:
    assert list(results["runs"]) == [job.name for job in jobs]
    for i, job in enumerate(jobs):
        expected = {"command": job.command, "arm": job.arm, "seed": job.seed, "sections": list(job.sections)}
        expected |= {"overrides": list(job.overrides), "key": f"{i:064x}", "seconds": i + 1.5}
        if job.command == "train":
            metrics = json.loads((finished.runs / job.name / "metrics.json").read_text())
            expected |= {"parameters": metrics["parameters"], "steps": metrics["steps"], "tokens": metrics["tokens"]}
        assert results["runs"][job.name] == {**expected, "directory": f"runs/{job.name}"}


def test_seconds_and_machine_and_code(results: dict[str, Any], jobs: list[Job]) -> None:
    training = sum(i + 1.5 for i, job in enumerate(jobs) if job.command == "train")
    everything = sum(i + 1.5 for i in range(len(jobs)))
    assert results["seconds"]["wall"] == pytest.approx(5000, abs=100)
    assert (results["seconds"]["training"], results["seconds"]["rest"]) == (training, everything - training)
    assert results["machine"] == {
        "processor": processor(),
        "cores": cores(),
        "gpus": [],
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    assert results["versions"]["torch"] == version("torch")
    assert set(results["versions"]) > {"txl_lightning", "lightning", "wandb", "hydra-core"}
    assert results["started"] == "2026-11-24T03:00:00+00:00"
    assert re.fullmatch("[0-9a-f]{64}", results["code"])
    assert (results["profile"], results["command"], results["schema_version"]) == ("laptop", "make it", 2)
    assert (results["finished"], results["progress"]) == (True, None)
    assert re.fullmatch("[0-9a-f]{64}", results["rules"])


def test_corpora_and_settings(results: dict[str, Any], finished: Setup) -> None:
    (corpus,) = results["corpora"]
    assert set(corpus["used_by"]) == set(SECTIONS) - {
        "table_9",
        "prose",
    }  # a model that is not trained; no text at hand
    assert {**corpus, "used_by": ()} == {"name": "sample", "level": "byte", "sha256": "ab" * 32, "used_by": ()}
    first = json.loads((finished.runs / "recurrence-relative-full_loss-seed1" / "metrics.json").read_text())
    settings = dict(results["settings"])
    assert settings["model"].endswith(f": {first['parameters']:,} parameters")
    assert settings["training"] == f"{first['steps']:,} steps of 32 streams × 32 tokens"
    assert settings["memory"] == "32 tokens in training (0 without recurrence)"
    assert settings["evaluation"].startswith("64 streams")
    assert settings["overrides"].startswith("data=file data.path=")
    assert settings["optimizer"].startswith("muon, learning rate ")


def test_what_is_written_follows_the_schema_and_is_shown(
    results: dict[str, Any], sections: list[Section], finished: Setup
) -> None:
    page = write_report(results, finished.directory).with_name("report.md").read_text()
    written = json.loads((finished.directory / "results.json").read_text())
    check_results(written)
    assert read_sections(written) == sections
    assert written["claims"] == judged(sections)
    figures = [figure for section in sections for figure in section.figures]
    assert page.count("![") == len(figures) + 2 == 17  # the first are of the arms and of the claims
    (loss,) = (table for section in sections for table in section.tables if table.id == "table_7")
    cell = loss.number("recurrence-relative-full_loss", "loss")
    assert list(cell.by_seed or {}) == ["1", "2", "3", "4"]
    assert f"| recurrence, relative, full loss | {cell.value:.3f} ± {cell.standard_error:.3f} | 0.000 |" in page
