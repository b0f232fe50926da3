"""A training run in Weights & Biases, offline: read back from its file, everything that it should show."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.small_run import tiny_config
from tests.wandb_files import artifacts, history, media, records, run_files, summary, table
from txl_lightning.config.schemas import LoggerConfig, plain
from txl_lightning.errors import OptionError
from txl_lightning.reporting.wandb_panels import log_files, wandb_run
from txl_lightning.runs.trained import load_trained
from txl_lightning.training.loggers import arm, run_name, upload_line
from txl_lightning.training.run import train

CONTEXTS = ("max_context=8", "every_n_steps=6")
CURVES = ("nll", "bpc", "learning_rate", "gradient_norm", "tokens_per_second", "memory_length")
GIVEN = ("logger=wandb", "logger.group=table_6", "logger.tags=[mine]", "trainer.log_every_n_steps=4")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`run`: twelve steps."""
    directory = tmp_path_factory.mktemp("wandb")
    contexts = [f"context_curve.{option}" for option in CONTEXTS]
    train(tiny_config(directory, *GIVEN, *contexts), directory / "run")
    assert re.fullmatch(
        rf"offline run of Weights & Biases, to upload it: wandb sync {directory}/run/wandb/offline-run-\d+_\d+-\w+",
        upload_line(directory / "run") or "",
    )
    return directory


@pytest.fixture(scope="module")
def run(directory: Path) -> Path:
    (run,) = run_files(directory / "run")
    return run


@pytest.fixture(scope="module")
def shown(run: Path) -> dict[str, Any]:
    return summary(run)


def test_it_is_named_grouped_and_tagged_and_knows_its_configuration(
    directory: Path, run: Path, shown: dict[str, Any]
) -> None:
    assert shown["project"] == "txl_lightning"
    assert shown["state"] == "finished"
    assert shown["name"] == "relative, recurrence, full loss; memory 8, segment 8, lr 0.004, seed 1"
    assert shown["tags"] == ["mine", "relative", "recurrence", "full loss"]
    (record,) = (record["run"] for record in records(run) if record["type"] == "run")
    assert (record["job_type"], record["run_group"]) == ("train", "table_6")
    expected = plain(load_trained(directory / "run/checkpoints/best.ckpt").config)
    assert expected.pop("beyond") == {}  # W&B drops it
    assert {name: shown["config"][name] for name in expected} == expected
    assert (shown["config"]["arm"], shown["config"]["parameters"]) == ("relative, recurrence, full loss", 91392)


def test_every_curve_is_over_tokens(run: Path) -> None:
    axes = {
        metric.get("name") or metric["glob_name"]: metric["step_metric"]
        for metric in (record["metric"] for record in records(run) if record["type"] == "metric")
    }
    assert {"train/*", "val/nll", "val/bpc", "val/ppl", "context/*", "recl/*"} <= set(axes)
    assert set(axes.values()) == {"tokens"}
    for name in CURVES:
        assert [row["tokens"] for row in history(run, f"train/{name}")] == [128, 256, 384], name
    kept = [json.loads(line) for line in (run.parents[2] / "wandb_history.jsonl").read_text().splitlines()]
    for name in ("train/nll", "train/learning_rate", "val/nll", "context/bpc/4", "recl/0.5"):
        expected = [row["metrics"][name] for row in kept if name in row.get("metrics", ())]
        assert [row[name] for row in history(run, name)] == pytest.approx(expected), name
    validated = [(row["tokens"], row["trainer/global_step"]) for row in history(run, "val/bpc")]
    assert validated == [(160, 5), (320, 10), (384, 12)]  # every 5 steps and after the last one
    for name in ("context/bpc/2", "context/bpc/8", "recl/0.1", "recl/1.0"):
        assert [row["tokens"] for row in history(run, name)] == [192, 384], name
    assert len(media(run, "table", "context/curve_table")) == 2
    shown = table(run, "context/table")
    assert [row[0] for row in shown["data"]] == ["6", "12"]
    columns = {"context/bpc/8": "bpc at 8 tokens", "context/doublings/2": "bits 2 → 4"}
    columns |= {
        "context/within_1_percent": "within 1 %",
        "recl/0.5": "RECL r = 0.5",
        "recl/0.5/guarded": "guarded r = 0.5",
    }
    for name, column in columns.items():
        logged = [row[name] for row in history(run, name)]
        assert [float(row[shown["columns"].index(column)]) for row in shown["data"]] == pytest.approx(logged), name


def test_best_values_and_metrics_json_are_summaries(directory: Path, run: Path, shown: dict[str, Any]) -> None:
    values, metrics = shown["summary"], json.loads((directory / "run/metrics.json").read_text())
    for name in ("val/nll", "val/bpc"):
        assert values[name] == {"min": min(row[name] for row in history(run, name))}
    assert {name: values[f"final/{name}"] for name in metrics} == metrics
    assert values["test/bpc"] == metrics["test/bpc"]


def test_the_best_weights_are_an_artifact_and_no_more_than_weights(directory: Path, run: Path) -> None:
    model = artifacts(run)["model"]
    assert model["name"] == f"model-{run.stem.removeprefix('run-')}"
    assert json.loads(model["metadata"])["arm"] == "relative, recurrence, full loss"
    (content,) = model["manifest"]["contents"]
    path = directory / "run/checkpoints/weights_step_12.ckpt"
    assert content["local_path"] == str(path)  # offline no copy is made elsewhere
    best = path.with_name("best.ckpt")
    assert path.stat().st_size < best.stat().st_size / 2
    ours, theirs = (load_trained(file) for file in (path, best))
    assert ours.step == theirs.step == 12
    assert ours.config == theirs.config
    state = theirs.model.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in ours.model.state_dict().items())


@pytest.mark.slow
def test_a_resumed_run_continues_its_curves(directory: Path, run: Path) -> None:
    before = artifacts(run)["model"]["manifest"]["contents"][0]
    longer = (*GIVEN, "trainer.max_steps=24", "logger.artifacts=false", "resume=auto")
    train(tiny_config(directory, *longer), directory / "run")
    (second,) = run_files(directory / "run")
    assert second.name != run.name
    assert run.with_name(run.name + ".superseded").exists()  # `wandb sync` does not upload its rows twice
    assert [row["tokens"] for row in history(second, "train/nll")] == list(range(128, 769, 128))
    assert [row["trainer/global_step"] for row in history(second, "val/nll")] == [5, 10, 12, 15, 20, 24]
    assert [row["trainer/global_step"] for row in history(second, "test/nll")] == [12, 24]
    assert summary(second)["summary"]["final/tokens"] == 768
    assert "model" not in artifacts(second)
    assert Path(before["local_path"]).exists()  # what the first session refers to until it is synced


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ((), ["relative", "recurrence", "full loss"]),
        (("memory=off", "encoding=al_rfou", "loss=half"), ["al_rfou", "no recurrence", "half loss"]),
        (("model.terms=ab",), ["relative", "recurrence", "full loss", "terms ab"]),
        (("encoding=absolute", "model.terms=ab"), ["absolute", "recurrence", "full loss"]),
        (("beyond=attention_gate",), ["relative", "recurrence", "full loss", "attention_gate gates=head"]),
        (("model=lstm", "optimizer.lr=1e-3"), ["lstm", "full loss"]),
    ],
)
def test_the_arm_in_words(tmp_path: Path, overrides: tuple[str, ...], words: list[str]) -> None:
    config = tiny_config(tmp_path, *overrides)
    assert arm(config) == words
    assert run_name(config).startswith(", ".join(words) + "; memory ")


def test_files_and_folders_become_an_artifact(tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures/curve.svg").write_text("<svg/>")
    (tmp_path / "report.md").write_text("# Report\n")
    with wandb_run(tmp_path, LoggerConfig(name="wandb", run_name="ours"), "report", {"profile": "smoke"}) as run:
        log_files(run, "report-smoke", "report", [tmp_path / "report.md", tmp_path / "figures"], {"seconds": 3})
        with pytest.raises(ValueError, match="absent"):
            log_files(run, "report-smoke", "report", [tmp_path / "absent.md"])
    (file,) = run_files(tmp_path)
    report = artifacts(file)["report"]
    assert (report["name"], json.loads(report["metadata"])) == ("report-smoke", {"seconds": 3})
    assert {content["path"] for content in report["manifest"]["contents"]} == {"report.md", "figures/curve.svg"}
    assert summary(file)["name"] == "ours"


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("online", r"^logger.mode=online: Weights & Biases says: .*key.*$"),
        ("onlin", r"logger.mode=onlin: must be offline, online or disabled"),
    ],
)
def test_online_without_a_key_and_an_unknown_mode_are_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, words: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # no netrc
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(OptionError, match=words):
        train(tiny_config(tmp_path, "logger=wandb", f"logger.mode={mode}"), tmp_path / "run")
