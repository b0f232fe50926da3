"""What users of lightning-hydra-template expect: each row is a command of a small run."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.in_process import refusal, success
from tests.small_multirun import words as multirun_words
from tests.training.small_run import TEXT, TINY


def train(directory: Path, *arguments: str) -> dict[str, Any]:
    """Run `txl train` on a small text and return `metrics.json`."""
    (directory / "text.txt").write_text(TEXT)
    words = [*TINY, "data.path=text.txt", "data.cache_dir=cache", "hydra.run.dir=run", *arguments]
    success("train", *words, directory=directory)
    metrics: dict[str, Any] = json.loads((directory / "run/metrics.json").read_text())
    return metrics


def test_fast_dev_run(tmp_path: Path) -> None:
    assert train(tmp_path, "trainer.fast_dev_run=true")["steps"] == 1


def test_arguments_of_the_trainer_are_options(tmp_path: Path) -> None:
    profiler = "{_target_: lightning.pytorch.profilers.SimpleProfiler, dirpath: profile, filename: times}"
    arguments = (
        "trainer.limit_train_batches=3",
        "trainer.num_sanity_val_steps=2",
        "trainer.detect_anomaly=true",
        "trainer.gradient_clip_val=0.5",
        "trainer.max_time=00:00:10:00",
        "trainer.val_every_n_steps=null",
        f"trainer.profiler={profiler}",
    )
    assert train(tmp_path, *arguments)["steps"] == 12
    assert "run_training_epoch" in (tmp_path / "profile/fit-times.txt").read_text()
    # Three batches are an epoch, and every epoch is validated once.
    assert len((tmp_path / "run/validation.jsonl").read_text().splitlines()) == 4
    config = (tmp_path / "run/config.yaml").read_text()
    assert "limit_train_batches: 3" in config


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("trainer.limit_trian_batches=3", "no such option, did you mean trainer.limit_train_batches?"),
        ("trainer.num_thread=3", "no such option, did you mean trainer.num_threads?"),
        ("trainer.limit_val_batches=3", "is decided by txl train; here: trainer.val_max_segments=N"),
        ("trainer.barebones=true", "trainer.barebones=True: Lightning refuses it: "),
    ],
)
def test_an_argument_that_cannot_be_used_is_refused(tmp_path: Path, argument: str, said: str) -> None:
    words = ("data=recall", "profile=smoke", "logger=none", "trainer.progress_bar=false")
    assert said in refusal("train", *words, argument, directory=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["default", "fdr", "limit", "overfit", "profiler"])
def test_every_choice_of_debug_runs(tmp_path: Path, name: str) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    small = [word for word in TINY if not word.startswith(("trainer.max", "trainer.val", "evaluation.max"))]
    paths = ("data.path=text.txt", "data.cache_dir=cache", "hydra.run.dir=run")
    success("train", *small, *paths, f"debug={name}", directory=tmp_path)
    assert (tmp_path / "run/metrics.json").exists()


@pytest.mark.full
def test_two_processes(tmp_path: Path) -> None:
    assert train(tmp_path, "trainer.devices=2")["processes"] == 2


@pytest.mark.slow
def test_a_longer_run_resumes_and_its_best_checkpoint_is_evaluated(tmp_path: Path) -> None:
    train(tmp_path, "trainer.max_steps=6")
    assert train(tmp_path, "trainer.max_steps=12", "resume=auto")["steps"] == 12
    best = "checkpoint=run/checkpoints/best.ckpt"
    success("evaluate", best, "hydra.run.dir=evaluated", directory=tmp_path)
    assert (tmp_path / "evaluated/evaluation.json").exists()


@pytest.mark.slow
def test_a_grid_sweep(tmp_path: Path) -> None:
    words = multirun_words(tmp_path, "hydra/launcher=basic", "optimizer.lr=1e-3,2e-3", "memory=on,off")
    success(*words, directory=tmp_path)
    assert len(list(tmp_path.glob("sweep/*/metrics.json"))) == 4
