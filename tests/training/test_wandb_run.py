"""A training run in Weights & Biases, offline: read back from its file, everything that it should show."""

import json
import re
import signal
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from tests.in_process import success
from tests.training.recorded_run import start
from tests.training.small_run import tiny_config, train_tiny
from tests.wandb_files import history, records, run_files, summary
from txl_lightning.config.schemas import flat, plain
from txl_lightning.errors import OptionError
from txl_lightning.evaluation.trained import read_checkpoint
from txl_lightning.reporting import upload_lines, wandb_panels
from txl_lightning.reporting.code import code_version
from txl_lightning.training.loggers import start_wandb

CONTEXTS = ("context_curve.max_context=8", "context_curve.every_n_steps=6")
LOGGED = [128, 256, 384]
MEASURED = [192, 384]
TOKENS = {
    "train/nll": LOGGED,
    "train/bpb": LOGGED,
    "train/learning_rate": LOGGED,
    "train/gradient_norm": LOGGED,
    "train/tokens_per_second": LOGGED,
    "train/memory_length": LOGGED,
    "val/bpb": [160, 320, 384],  # every 5 steps and after the last one
    "context/bpb/2": MEASURED,
    "context/bpb/8": MEASURED,
    "recl/0.1": MEASURED,
    "recl/1.0": MEASURED,
}
PANELS = [
    ("validation", "val/nll", "val/nll"),
    ("context_curve", "context/within_1_percent", "context/within_1_percent"),
]
GIVEN = (
    "logger=wandb",
    "logger.group=table_6",
    "logger.tags=[mine]",
    "tags=[a,b]",
    "trainer.log_every_n_steps=4",
)
TO_UPLOAD = "offline run of Weights & Biases, to upload it: wandb sync"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """File of a run of twelve steps, in `run/wandb/…`."""
    directory = tmp_path_factory.mktemp("wandb")
    train_tiny(directory, *GIVEN, *CONTEXTS)
    line = rf"{TO_UPLOAD} {directory}/run/wandb/offline-run-\d+_\d+-\w+"
    (upload,) = upload_lines(directory / "run")
    assert re.fullmatch(line, upload)
    (run,) = run_files(directory / "run")
    return run


def test_it_is_named_grouped_and_tagged_and_has_its_config_and_code(run):
    shown = summary(run)
    assert (shown["project"], shown["state"]) == ("txl_lightning", "finished")
    assert shown["name"] == "relative, recurrence, full loss; memory 8, segment 8, lr 0.004, seed 1"
    assert shown["tags"] == ["mine", "relative", "recurrence", "full loss", "a", "b"]
    (record,) = (record["run"] for record in records(run) if record["type"] == "run")
    assert (record["job_type"], record["run_group"]) == ("train", "table_6")
    best = read_checkpoint(run.parents[2] / "checkpoints/best.ckpt")
    for name, value in flat(plain(best.config)).items():
        found = shown["config"]
        for key in name.split("."):
            found = found[key]
        assert found == value, name
    assert shown["config"]["arm"] == "relative, recurrence, full loss"
    assert shown["config"]["parameters"] == 91392
    version = code_version()
    for name in ("version", "commit"):
        assert shown["config"][name] == best.record[name] == version[name]
    first_line = (run.parents[2] / "config.yaml").read_text().splitlines()[0]
    commit = version["commit"] or "unknown"
    assert first_line == f"# txl_lightning {version['version']}, commit {commit}"


def test_every_curve_is_over_tokens(run):
    axes = {}
    for record in records(run):
        if record["type"] == "metric":
            metric = record["metric"]
            axes[metric.get("name") or metric["glob_name"]] = metric["step_metric"]
    assert {"train/*", "val/nll", "val/bpb", "val/ppl", "context/*", "recl/*"} <= set(axes)
    assert set(axes.values()) == {"tokens"}
    for name, tokens in TOKENS.items():
        assert [row["tokens"] for row in history(run, name)] == tokens, name
    for file, name, panel in PANELS:
        lines = (run.parents[2] / f"{file}.jsonl").read_text().splitlines()
        expected = [json.loads(line)[name] for line in lines]
        assert [row[panel] for row in history(run, panel)] == pytest.approx(expected)


def test_the_figure_of_the_context_curves_is_logged(run):
    (figure,) = run.parent.glob("files/media/images/context_curve_*")
    assert figure.suffix == ".png"


def test_txl_recl_says_how_to_upload_its_run(run, tmp_path):
    best = run.parents[2] / "checkpoints/best.ckpt"
    words = ("first_context=4", "step=4", "max_context=8", "n_positions=20", "bootstrap=0")
    done = success(
        "recl",
        f"checkpoints=[{best}]",
        "logger=wandb",
        *words,
        directory=tmp_path,
    )
    assert TO_UPLOAD in done.err


def test_best_values_and_metrics_json_are_summaries(run):
    values = summary(run)["summary"]
    metrics = json.loads((run.parents[2] / "metrics.json").read_text())
    for name in ("val/nll", "val/bpb"):
        assert values[name] == {"min": min(row[name] for row in history(run, name))}
    assert {name: values[f"final/{name}"] for name in metrics} == metrics


@pytest.mark.parametrize(
    ("earlier", "now", "run_id"),
    [
        ("online", "online", "abc"),
        ("online", "offline", None),
        ("offline", "online", None),
    ],
)
def test_only_an_online_run_continues(tmp_path, monkeypatch, earlier, now, run_id):
    """An offline id that was synced later would be replaced, not continued."""
    start = Mock()
    monkeypatch.setattr(wandb_panels, "start_run", start)
    before = tiny_config(tmp_path, "logger=wandb", f"logger.mode={earlier}")
    resumed = SimpleNamespace(config=before, record={"wandb_id": "abc"})
    config = tiny_config(tmp_path, "logger=wandb", f"logger.mode={now}")
    with suppress(TypeError):  # Lightning wants a run of W&B
        start_wandb(config, tmp_path, 1, resumed)
    assert start.call_args.kwargs["run_id"] == run_id


def test_online_without_a_key_is_refused_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # no netrc
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(OptionError, match=r"^logger.mode=online: Weights & Biases says: .*key.*$"):
        train_tiny(tmp_path, "logger=wandb", "logger.mode=online")


@pytest.mark.parametrize(
    ("devices", "number", "exit_code"),
    [(2, signal.SIGTERM, 143), (1, 0, 1)],
)
@pytest.mark.slow
def test_a_run_that_is_stopped_or_fails_in_a_child_process_is_complete(
    tmp_path, devices, number, exit_code
):
    """A child of multiprocessing leaves without W&B's own end of a run."""
    event = {"at": 7, "rank": 0}
    if number:
        event["signal"] = number
    words = ("logger=wandb", "trainer.log_every_n_steps=1", f"trainer.devices={devices}")
    start(tmp_path, *words, **event).finish()
    (file,) = run_files(tmp_path / "run")
    (end,) = [record["exit"] for record in records(file) if record["type"] == "exit"]
    assert end.get("exit_code", 0) == exit_code
    steps = [row["trainer/global_step"] for row in history(file, "train/nll")]
    assert steps == list(range(1, 8 if number else 7))
