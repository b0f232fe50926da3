"""Jobs: planned once, identified by what they depend on."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from experiments import reproduce
from experiments.arms import ON, training
from experiments.engine import jobs
from experiments.engine.jobs import Job
from experiments.engine.profiles import PROFILES, Setup
from experiments.tables import table_8
from tests.experiments.tables.sample_outcomes import planned
from txl_lightning.evaluation import hardware
from txl_lightning.evaluation.models import make_model
from txl_lightning.job_folder import checksum


@pytest.mark.slow
@pytest.mark.parametrize(
    "profile", ["laptop", *(pytest.param(n, marks=pytest.mark.full) for n in ("smoke", "gpu", "paper"))]
)
def test_every_training_of_every_profile_composes_and_is_planned_once(profile: str, tmp_path: Path) -> None:
    found = planned(Setup(PROFILES[profile], (), tmp_path, planning=True), *reproduce.SECTIONS)
    names = [job.name for job in found]
    assert len(set(names)) == len(names)
    seen: set[str] = set()
    for job in found:
        assert set(job.needs) <= seen
        seen.add(job.name)
        if job.command == "train":
            *words, seed = job.overrides
            assert seed == f"seed={job.seed}"
            config = jobs.composed(tuple(words))  # cached: the seeds of an arm differ in nothing else
            assert config.trainer.accelerator == ("gpu" if profile in ("gpu", "paper") else "cpu")
            assert config.data.batch_size % config.trainer.devices == 0
            assert config.evaluation.batch_size >= config.trainer.devices
    shared = next(job for job in found if job.name == "recurrence-relative-full_loss-seed1")
    pictures = set() if profile in ("gpu", "paper") else {"figures_5_to_7"}  # of a published model
    assert {"main_results", "table_6", "table_8", "table_10"} | pictures == set(shared.sections)


LARGE = [pytest.param(name, 267_735, marks=pytest.mark.full) for name in ("gpu", "paper")]


@pytest.mark.parametrize(("profile", "vocab_size"), [("laptop", 2048), ("night", 4096), *LARGE])
def test_baselines_have_as_many_parameters_as_the_transformer_xl(profile: str, vocab_size: int, tmp_path: Path) -> None:
    setup = Setup(PROFILES[profile], (), tmp_path, planning=True)
    with torch.device("meta"):
        models = [make_model(jobs.composed(run.overrides), vocab_size) for run in table_8._runs(1, setup, 1).values()]
    sizes = [sum(parameter.numel() for parameter in model.parameters()) for model in models]
    assert len(sizes) == 3
    assert max(sizes) / min(sizes) < 1.02
    if profile in ("gpu", "paper"):
        assert sizes[0] == 151_107_538


def keys_of(found: list[Job], corpus: str = "x") -> dict[str, str]:
    made = jobs.identities(found, {job.name: corpus for job in found})
    return {name: checksum(identity) for name, identity in made.items()}


@pytest.mark.slow
def test_a_key_depends_on_what_changes_the_numbers_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(PROFILES["smoke"], (), tmp_path)
    run = training(ON, 1, setup)
    reading = Job("read", "evaluate", (f"checkpoint={run.checkpoint}",), run.arm, needs=(run.name,))
    timing = Job("time", "speed", (), run.arm, alone=True)
    before = keys_of([run, reading, timing])

    def changed(*words: str, corpus: str = "x") -> set[str]:
        other = replace(run, overrides=(*run.overrides, *words))
        after = keys_of([other, reading, timing], corpus)
        return {name for name in before if after[name] != before[name]}

    how = ("logger=csv", "data.cache_dir=/elsewhere", "data.root=/there", "resume=auto")
    shown = ("trainer.progress_bar=false", "trainer.log_every_n_steps=7")
    assert changed(*how, *shown, "checkpoint.every_n_steps=7") == set()
    assert changed("optimizer.lr=1e-3") == changed(corpus="y") == {run.name, "read"}
    monkeypatch.setattr(jobs, "gpus", lambda: ["NVIDIA H200"])
    assert changed() == {"time"}
    monkeypatch.setattr(jobs, "code_of", lambda module: f"another {module}" if "training" in module else module)
    monkeypatch.setattr(jobs, "gpus", list)
    assert changed() == {run.name, "read", "time"}


def test_measurements_have_the_precision_of_the_trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = set()
    for automatic in ("bf16-mixed", "32-true"):
        monkeypatch.setattr(hardware, "fastest_precision", lambda accelerator, name=automatic: name)
        found = planned(Setup(PROFILES["laptop"], (), tmp_path, planning=True), "table_8")
        assert {jobs.composed(j.overrides).trainer.precision for j in found if j.command == "train"} == {automatic}
        measured = [job for job in found if job.command in ("evaluate", "recl")]
        assert all(f"precision={automatic}" in job.overrides for job in measured)
        keys.add(keys_of(found)["recl-group2-seed1"])
    assert len(keys) == 2


def test_a_directory_keeps_the_precision_that_was_chosen_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan writes nothing; one that the user gives is not replaced."""
    half, single = "bf16-mixed", "32-true"
    for fastest, planning, kept in ((half, True, half), (single, False, single), (half, False, single)):
        monkeypatch.setattr(hardware, "fastest_precision", lambda accelerator, name=fastest: name)
        assert jobs.chosen_precision(("profile=laptop",), tmp_path, planning) == (f"trainer.precision={kept}",)
    assert jobs.chosen_precision(("profile=laptop", "trainer.precision=bf16-mixed"), tmp_path, False) == ()
