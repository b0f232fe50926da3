"""The results of a multirun, what a search minimizes, and what it refuses before its first job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from tests.in_process import refusal, run_txl, success
from tests.small_multirun import results, words
from tests.training.small_run import TEXT, TINY
from txl_lightning.application import register
from txl_lightning.config.schemas import CONF
from txl_lightning.errors import UserError
from txl_lightning.evaluation import hardware
from txl_lightning.multirun import (
    JobFolder,
    choose_folder,
    job_folders,
    ordering,
    write_results,
)


def finished(root: Path, number: int, overrides: dict[str, Any], metrics: dict[str, Any]) -> None:
    """Write the folder of a finished job."""
    job = JobFolder(root / str(number))
    options = {"data.level": "bpe", "data.vocab_size": 300, "seed": 1}
    options.update(overrides)
    words = [f"{name}={value}" for name, value in overrides.items()]
    job.write(overrides=words, options=options)
    (job.path / "metrics.json").write_text(json.dumps(metrics))


def lines(root: Path) -> list[str]:
    table = write_results(root)
    assert table is not None
    return table.read_text().splitlines()


def test_jobs_are_ordered_by_loss_and_have_the_overrides_that_differ(tmp_path: Path) -> None:
    for number, (lr, nll) in enumerate(((0.1, 3.0), (0.2, 1.0), (0.3, 2.0))):
        overrides = {"optimizer.lr": lr, "model.n_layer": 2}
        finished(tmp_path, number, overrides, {"val/nll": nll, "val/ppl": nll, "steps": 6})
    assert lines(tmp_path) == [
        "| job | optimizer.lr | val ppl | state |",
        "| ---: | ---: | ---: | --- |",
        "| 1 | 0.2 | 1.0000 | finished |",
        "| 2 | 0.3 | 2.0000 | finished |",
        "| 0 | 0.1 | 3.0000 | finished |",
    ]
    found = json.loads((tmp_path / "multirun.json").read_text())
    assert found["objective"] == "val/nll"
    assert found["seeds"] == []
    assert found["jobs"][0] == {
        "job": "1",
        "optimizer.lr": "0.2",
        "val/nll": 1.0,
        "val/ppl": 1.0,
        "state": "finished",
    }


def test_jobs_of_different_texts_have_no_order(tmp_path: Path) -> None:
    for number, text in enumerate(("a", "b")):
        metrics = {"val/nll": 2.0, "val/bpb": 2.9, "corpus": {"name": text}}
        finished(tmp_path, number, {"data": text}, metrics)
    assert "The jobs read different texts" in "\n".join(lines(tmp_path))
    assert ordering(job_folders(tmp_path)) is None


def test_a_folder_of_another_job_is_refused_however_its_path_is_written(tmp_path: Path) -> None:
    finished(tmp_path, 0, {"seed": 1}, {"val/nll": 2.0})
    wanted = tmp_path / "0" / ".." / "0"
    with pytest.raises(UserError, match="holds a job with other options"):
        choose_folder(tmp_path, wanted, {"seed": 2}, is_search=False)
    assert choose_folder(tmp_path, wanted, {"seed": 2}, is_search=True).path == tmp_path / "1"
    (job,) = job_folders(tmp_path)
    assert choose_folder(tmp_path, wanted, job.options, is_search=False) == job


def test_jobs_that_differ_in_the_seed_alone_have_a_mean_and_a_spread(tmp_path: Path) -> None:
    number = 0
    for lr, losses in ((0.1, (1.0, 3.0)), (0.2, (4.0, 4.0))):
        for seed, nll in enumerate(losses):
            overrides = {"optimizer.lr": lr, "seed": seed, "data.seed": seed}
            finished(tmp_path, number, overrides, {"val/nll": nll, "val/bpb": nll})
            number += 1
    assert lines(tmp_path)[-4:] == [
        "| optimizer.lr | val bpb | seeds |",
        "| ---: | ---: | ---: |",
        "| 0.1 | 2.0000 ± 1.4142 | 2 |",
        "| 0.2 | 4.0000 ± 0.0000 | 2 |",
    ]
    found = json.loads((tmp_path / "multirun.json").read_text())
    assert found["seeds"][0]["val/nll"] == "2.0000 ± 1.4142"


def test_failed_and_stopped_jobs_are_in_the_table(tmp_path: Path) -> None:
    finished(
        tmp_path, 0, {"seed": 1}, {"val/nll": 1.0, "val/bpb": 1.0, "steps": 3, "ended_by": "Timer"}
    )
    failed = JobFolder(tmp_path / "1")
    failed.write(overrides=["seed=-1"], options={"seed": -1})
    failed.fail("seed=-1: must be an integer >= 0")
    JobFolder(tmp_path / "2").write(overrides=["seed=2"], options={"seed": 2})
    assert lines(tmp_path)[2:] == [
        "| 0 | 1 | 1.0000 | finished by Timer at step 3 |",
        "| 1 | -1 | – | failed |",
        "| 2 | 2 | – | stopped |",
    ]
    jobs = json.loads((tmp_path / "multirun.json").read_text())["jobs"]
    assert jobs[1]["error"] == "seed=-1: must be an integer >= 0"


def test_a_search_minimizes_bits_per_byte_or_the_loss_of_equal_tokens(tmp_path: Path) -> None:
    finished(tmp_path, 0, {"data.level": "word"}, {"val/nll": 4.0})
    finished(tmp_path, 1, {"data.level": "word", "seed": 2}, {"val/nll": 5.0})
    assert ordering(job_folders(tmp_path)) == "val/nll"
    finished(tmp_path, 2, {"data.level": "byte"}, {"val/nll": 2.0, "val/bpb": 2.9})
    assert ordering(job_folders(tmp_path)) is None
    for number in (0, 1):
        (tmp_path / str(number) / "metrics.json").write_text('{"val/nll": 4.0, "val/bpb": 1.0}')
    assert ordering(job_folders(tmp_path)) == "val/bpb"


def multirun(directory: Path, *arguments: str) -> list[dict[str, Any]]:
    """Run a multirun in this process and return its jobs, the best one first."""
    success(*words(directory, "hydra/launcher=basic", *arguments), directory=directory)
    jobs: list[dict[str, Any]] = results(directory)["jobs"]
    return jobs


GRID = ("hydra/sweeper=optuna", "hydra/sweeper/sampler=grid", "hydra.sweeper.n_trials=2")


@pytest.mark.slow
def test_optuna_chooses_the_fewest_bits_per_byte(tmp_path: Path) -> None:
    """Of 258 tokens each is easier to predict, of 330 each has more bytes."""
    sizes = ("data.level=bpe", "data.vocab_size=choice(258,330)", "trainer.max_steps=30")
    first, second = multirun(tmp_path, *GRID, *sizes)
    assert first["data.vocab_size"] == "330"
    assert first["val/bpb"] < second["val/bpb"]
    best = OmegaConf.load(tmp_path / "sweep/optimization_results.yaml")
    assert str(best.best_params["data.vocab_size"]) == "330"
    assert best.best_value == first["val/bpb"]


@pytest.mark.slow
def test_a_grid_without_comparable_losses_has_no_order_and_a_search_over_it_fails(
    tmp_path: Path,
) -> None:
    jobs = multirun(tmp_path, "data.level=word,byte")
    assert [job["state"] for job in jobs] == ["finished", "finished"]
    assert results(tmp_path)["objective"] is None
    assert "the table has no order" in (tmp_path / "sweep/multirun.md").read_text()
    search = (*GRID, "hydra/launcher=process", "data.level=choice(word,byte)")
    done = run_txl(*words(tmp_path, *search))
    assert done.status == 1
    assert "their losses cannot be compared" in done.err


@pytest.mark.slow
def test_every_job_has_the_precision_of_the_first_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(["bf16-mixed", "32-true"] * 2)
    monkeypatch.setattr(hardware, "fastest_precision", lambda accelerator: next(answers))
    multirun(tmp_path, "trainer.precision=auto", "seed=1,2")
    multirun(tmp_path, "trainer.precision=auto", "seed=1,2,3")
    for number in range(3):
        config = OmegaConf.load(tmp_path / f"sweep/{number}/config.yaml")
        assert config.trainer.precision == "bf16-mixed"


@pytest.mark.slow
def test_the_search_for_recipes_reads_the_whole_validation_split(tmp_path: Path) -> None:
    """A job of `laptop_search` validates on as many tokens as the split has."""
    (tmp_path / "text.txt").write_text(TEXT)
    given = [word for word in TINY if not word.startswith(("profile", "evaluation", "trainer.val"))]
    given += [
        "experiment=laptop_search",
        "optimizer.lr=1e-3,2e-3",
        "optimizer.warmup_steps=0",
        "trainer=cpu",
        "trainer.precision=32-true",
        "trainer.max_steps=2",
        "context_curve.every_n_steps=null",
        "evaluation.batch_size=1",
        "data.path=text.txt",
        "data.cache_dir=cache",
        "hydra.sweep.dir=sweep",
        "hydra/launcher=basic",
    ]
    success("train", "-m", *given, directory=tmp_path)
    for number in range(2):
        found = json.loads((tmp_path / f"sweep/{number}/metrics.json").read_text())
        assert found["evaluation"]["max_segments"] is None
        assert found["val/tokens"] == 98  # the split has 99


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["hydra.sweeper.direction=[minimize,maximize]"],
            "hydra.sweeper.direction=['minimize', 'maximize']: must be",
        ),
        (
            ["hydra/sweeper/sampler=grid", "optimizer.lr=interval(1e-4, 1e-2)"],
            "optimizer.lr=interval(1e-4, 1e-2): a grid needs values: choice(…) or range(…)",
        ),
    ],
)
def test_a_search_whose_jobs_would_all_fail_is_refused(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    assert said in refusal(*words(tmp_path, "hydra/sweeper=optuna", *arguments), directory=tmp_path)
    assert not list(tmp_path.glob("sweep/*/*"))


def test_slurm_gives_every_device_a_task() -> None:
    register()
    given = (
        "hydra/launcher=slurm",
        "trainer.devices=4",
        "hydra.launcher.partition=gpu",
        "hydra.job.name=cli",
        "hydra.sweep.dir=sweep",
    )
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("train", overrides=list(given), return_hydra_config=True)
    launcher = config.hydra.launcher
    assert launcher.tasks_per_node == 4
    assert launcher.gpus_per_node == 4
    assert launcher.partition == "gpu"
    assert launcher.submitit_folder == "sweep/.submitit/%j"
