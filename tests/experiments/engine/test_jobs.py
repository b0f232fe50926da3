"""Jobs: planned once, identified by what they depend on."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from experiments import reproduce
from experiments.arms import ON, Arm, trainings
from experiments.engine import jobs
from experiments.engine.jobs import Job, composed
from experiments.engine.profiles import PROFILES, Setup
from tests.fixtures import Patch
from txl_lightning.application import composition, register, typed
from txl_lightning.evaluation import hardware
from txl_lightning.evaluation.models import make_model
from txl_lightning.evaluation.perplexity import check_options
from txl_lightning.registry import COMMANDS

FULL = [pytest.param(name, marks=pytest.mark.full) for name in ("smoke", "gpu", "paper")]


def setup_of(profile: str, folder: Path) -> Setup:
    sections = tuple(reproduce.SECTIONS)
    return Setup(
        PROFILES[profile],
        (),
        folder,
        planning=True,
        sections=sections,
    )


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["laptop", *FULL])
def test_every_training_composes_and_is_planned_once(profile: str, tmp_path: Path) -> None:
    planned = reproduce.plan_jobs(setup_of(profile, tmp_path))
    seen: set[str] = set()
    for job in planned:
        assert job.name not in seen
        assert set(job.needs) <= seen
        seen.add(job.name)
        if job.command == "train":
            config = composed(job.overrides)
            assert config.seed == job.seed
            is_large = profile in ("gpu", "paper")
            assert config.trainer.accelerator == ("gpu" if is_large else "cpu")
        elif job.command == "evaluate":
            register(COMMANDS["evaluate"])
            check_options(typed(composition("evaluate", job.overrides)))


@pytest.mark.parametrize(
    ("profile", "vocab_size"),
    [
        ("laptop", 2048),
        ("night", 4096),
        pytest.param("gpu", 267_735, marks=pytest.mark.full),
        pytest.param("paper", 267_735, marks=pytest.mark.full),
    ],
)
def test_baselines_have_as_many_parameters_as_the_transformer_xl(
    profile: str, vocab_size: int, tmp_path: Path
) -> None:
    sizes = []
    for arm in (ON, Arm(baseline="lstm"), Arm(baseline="qrnn")):
        run = trainings(arm, setup_of(profile, tmp_path))[0]
        with torch.device("meta"):
            model = make_model(composed(run.overrides), vocab_size)
        sizes.append(sum(parameter.numel() for parameter in model.parameters()))
    assert max(sizes) / min(sizes) < 1.02


def changed(planned: list[Job], other: list[Job] | None = None, corpus: str = "text") -> set[str]:
    """Return the names of the jobs whose identity changes with other jobs or another text."""
    before = jobs.identities(planned, dict.fromkeys(["run"], "text"))
    after = jobs.identities(other or planned, dict.fromkeys(["run"], corpus))
    return {name for name in before if after[name] != before[name]}


@pytest.mark.slow
def test_an_identity_depends_on_what_changes_the_numbers_alone(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    run = replace(trainings(ON, setup_of("smoke", tmp_path))[0], name="run")
    reading = Job(
        "read",
        "evaluate",
        (f"checkpoint={run.checkpoint}",),
        run.arm,
        needs=("run",),
    )
    timing = Job("time", "speed", (), run.arm, alone=True)
    planned = [run, reading, timing]

    def with_words(*words: str) -> list[Job]:
        return [
            replace(run, overrides=(*run.overrides, *words)),
            reading,
            timing,
        ]

    without_influence = ("data.root=/there", "resume=auto", "trainer.progress_bar=false")
    assert changed(planned, with_words(*without_influence)) == set()
    assert changed(planned, with_words("optimizer.lr=1e-3")) == {"run", "read"}
    assert changed(planned, corpus="other text") == {"run", "read"}
    before = jobs.identities(planned, {"run": "text"})
    monkeypatch.setattr(jobs, "gpus", lambda: ["NVIDIA H200"])
    after = jobs.identities(planned, {"run": "text"})
    assert before["time"] != after["time"]
    assert before["read"] == after["read"]
    monkeypatch.setattr(jobs, "code_of", lambda module: "another code")
    assert all(
        before[job.name] != jobs.identities(planned, {"run": "text"})[job.name] for job in planned
    )


def test_a_directory_keeps_its_first_precision_for_all_jobs(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    setup = setup_of("laptop", tmp_path)
    for fastest in ("bf16-mixed", "32-true"):
        monkeypatch.setattr(hardware, "fastest_precision", lambda accelerator, name=fastest: name)
        chosen = reproduce.in_one_precision(setup)
        assert chosen.overrides == ("trainer.precision=bf16-mixed",)
    for job in reproduce.plan_jobs(chosen):
        if job.command in ("evaluate", "recl"):
            assert "precision=bf16-mixed" in job.overrides
