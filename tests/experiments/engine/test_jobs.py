"""Jobs: planned once, identified by what they depend on."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch

from experiments import reproduce
from experiments.engine import jobs
from experiments.engine.jobs import Job
from experiments.engine.plan import Plan, token_cost
from experiments.engine.profiles import PROFILES, Setup
from experiments.paper import TABLE_6, TABLE_7
from experiments.tables import table_8
from experiments.tables.arms import (
    CORPUS_OPTIONS,
    Arm,
    OtherCorpus,
    check_overrides,
    in_precision_of_training,
    training,
)
from txl_lightning.errors import OptionError
from txl_lightning.runs.models import make_model
from txl_lightning.training import checks

LENGTHS: tuple[Literal["equal tokens", "equal steps"], ...] = ("equal tokens", "equal steps")


BY_DEFAULT = tuple(name for name in reproduce.SECTIONS if name not in reproduce.ON_REQUEST)


def planned(
    profile: str, tmp_path: Path, *overrides: str, sections: tuple[str, ...] = BY_DEFAULT
) -> tuple[Setup, list[Job]]:
    setup = Setup(PROFILES[profile], overrides, tmp_path, planning=True)
    return setup, jobs.merge({name: reproduce.SECTIONS[name].jobs(setup) for name in sections})


@pytest.mark.parametrize(
    "profile", ["laptop", *(pytest.param(n, marks=pytest.mark.slow) for n in ("smoke", "evening", "gpu", "paper"))]
)
def test_every_training_of_every_profile_composes_and_is_planned_once(profile: str, tmp_path: Path) -> None:
    _, found = planned(profile, tmp_path)
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
    pictures = set() if profile in ("gpu", "paper") else {"figures_5_to_7", "appendix_e"}  # of a published model
    assert {"main_results", "table_6", "table_8", "table_10", "regime"} | pictures == set(shared.sections)


def test_options_of_the_arms_are_refused_and_others_reach_their_arms(tmp_path: Path) -> None:
    default = Setup(PROFILES["laptop"], (), tmp_path)
    with_memory, without = (set(training(Arm(on), 1, default).overrides) for on in (True, False))
    changed = {word.split("=")[0] for word in with_memory ^ without}
    windows = {"evaluation.segment_len", "evaluation.ext_len", "evaluation.max_segments", "trainer.val_max_segments"}
    recipe = {word.split("=")[0] for word in PROFILES["laptop"].recipes.get("no_recurrence", ())}
    assert changed == {"memory"} | windows | recipe
    for word in ("seed=7", "memory=off", "encoding=shaw", "loss=half", "logger=csv", "trainer.devices=2"):
        with pytest.raises(OptionError, match="the experiments set it"):
            check_overrides((word,))
    words = ("memory.mem_len=48", "data.segment_len=64", "model.n_layer=4", "evaluation.clamp_len=10")
    check_overrides(words)
    setup = Setup(PROFILES["laptop"], words, tmp_path)
    on, off, lstm, longer = (
        jobs.composed(training(arm, 1, setup).overrides)
        for arm in (Arm(True), Arm(False), Arm(baseline="lstm"), Arm(False, longer="equal steps"))
    )
    assert (on.memory.mem_len, off.memory.mem_len) == (48, 0)
    assert (on.data.segment_len, longer.data.segment_len) == (64, 88)
    assert (on.model.n_layer, lstm.model.n_layer, lstm.model.name) == (4, 2, "lstm")
    assert (on.evaluation.clamp_len, lstm.evaluation.clamp_len) == (10, None)


@pytest.mark.parametrize(
    ("profile", "loss"), [("laptop", "full"), ("laptop", "half"), ("gpu", "full"), ("paper", "half")]
)
def test_longer_segments_have_equal_tokens_or_equal_steps(profile: str, loss: str, tmp_path: Path) -> None:
    setup = Setup(PROFILES[profile], (), tmp_path)
    same, tokens, steps = (
        jobs.composed(training(arm, 1, setup).overrides)
        for arm in (Arm(loss=loss), *(Arm(False, loss=loss, longer=equal) for equal in LENGTHS))
    )
    assert steps.trainer.max_steps == same.trainer.max_steps
    assert steps.data.segment_len == tokens.data.segment_len > same.data.segment_len
    read = [config.trainer.max_steps * config.data.segment_len for config in (same, tokens)]
    assert abs(read[0] - read[1]) <= tokens.data.segment_len / 2  # half a step
    share = tokens.trainer.max_steps / same.trainer.max_steps
    assert tokens.optimizer.warmup_steps == pytest.approx(share * same.optimizer.warmup_steps, abs=1)


def test_every_run_is_evaluated_once_on_both_splits(tmp_path: Path) -> None:
    _, found = planned("laptop", tmp_path)
    jobs_of = {job: " ".join(job.overrides) for job in found if job.command == "evaluate"}
    dynamic = [job for job, words in jobs_of.items() if "dynamic.search=true" in words]
    assert [job.name for job in dynamic] == ["dynamic-seed1"]
    evaluations = {job.needs[0]: words for job, words in jobs_of.items() if job not in dynamic}
    assert set(evaluations) == {job.name for job in found if job.command == "train"}
    assert all("splits=[valid,test] select_on=valid losses=true" in words for words in evaluations.values())
    unclamped = {name for name, words in evaluations.items() if "unclamped=true" in words}
    assert unclamped == {f"{arm.key}-seed1" for arm in (Arm(), Arm(False), Arm(False, loss="half"))}
    memory = {name for name, words in evaluations.items() if "memory_at_evaluation=" in words}
    assert unclamped - memory == {"recurrence-relative-full_loss-seed1"}


@pytest.mark.parametrize(
    ("profile", "vocab_size"),
    [("laptop", 256), *(pytest.param(name, 267_735, marks=pytest.mark.slow) for name in ("gpu", "paper"))],
)
def test_baselines_have_as_many_parameters_as_the_transformer_xl(profile: str, vocab_size: int, tmp_path: Path) -> None:
    setup = Setup(PROFILES[profile], (), tmp_path, planning=True)
    with torch.device("meta"):
        models = [make_model(jobs.composed(run.overrides), vocab_size) for run in table_8._runs(1, setup, 1).values()]
    sizes = [sum(parameter.numel() for parameter in model.parameters()) for model in models]
    assert len(sizes) == 3
    assert max(sizes) / min(sizes) < 1.02
    if profile != "laptop":
        assert sizes[0] == 151_107_538


def keys_of(found: list[Job], corpus: str = "x") -> dict[str, str]:
    return jobs.keys(found, {job.name: corpus for job in found})


def test_a_key_depends_on_what_changes_the_numbers_and_on_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = Setup(PROFILES["smoke"], (), tmp_path)
    run = training(Arm(), 1, setup)
    reading = Job("read", "evaluate", (f"checkpoint={run.checkpoint}",), run.arm, needs=(run.name,))
    timing = Job("time", "speed", (), run.arm, alone=True)
    before = keys_of([run, reading, timing])

    def changed(*words: str, corpus: str = "x") -> set[str]:
        other = replace(run, overrides=(*run.overrides, *words))
        after = keys_of([other, reading, timing], corpus)
        return {name for name in before if after[name] != before[name]}

    how = ("logger=csv", "data.cache_dir=/elsewhere", "data.root=/there", "resume=auto")
    shown = ("trainer.progress_bar=false", "trainer.progress_file=true", "trainer.log_every_n_steps=7")
    assert changed(*how, *shown, "checkpoint.every_n_steps=7") == set()
    assert changed("optimizer.lr=1e-3") == changed(corpus="y") == {run.name, "read"}
    monkeypatch.setattr(jobs, "gpus", lambda: ["NVIDIA H200"])
    assert changed() == {"time"}
    monkeypatch.setattr(jobs, "code_of", lambda module: f"another {module}" if "training" in module else module)
    monkeypatch.setattr(jobs, "gpus", list)
    assert changed() == {run.name, "read", "time"}


def test_measurements_have_the_precision_of_the_trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = set()
    for automatic, other in (("bf16-mixed", "32-true"), ("32-true", "bf16-mixed")):
        monkeypatch.setattr(checks, "fastest_precision", lambda accelerator, name=automatic: name)
        _, found = planned("laptop", tmp_path, sections=("table_8",))
        assert {jobs.composed(j.overrides).trainer.precision for j in found if j.command == "train"} == {automatic}
        measured = [job for job in found if job.command in ("evaluate", "recl")]
        assert all(f"precision={automatic}" in job.overrides for job in measured)
        keys.add(keys_of(found)["recl-group2-seed1"])
        asked = Setup(PROFILES["laptop"], (f"trainer.precision={other}",), tmp_path)
        assert in_precision_of_training(("precision=auto",), asked) == (f"precision={other}",)
    assert len(keys) == 2


@pytest.mark.slow
def test_a_directory_keeps_the_precision_that_was_chosen_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def planned_in(*words: str, planning: bool = False) -> set[str]:
        setup = Setup(PROFILES["laptop"], words, tmp_path, planning, sections=("table_7",))
        found = [job for job in reproduce.plan(setup).jobs if job.command in ("train", "evaluate")]
        given = {word.removeprefix("trainer.") for job in found for word in job.overrides if "precision=" in word}
        assert all(any("precision=" in word for word in job.overrides) for job in found)
        return given

    monkeypatch.setattr(checks, "fastest_precision", lambda accelerator: "bf16-mixed")
    assert planned_in(planning=True) == {"precision=bf16-mixed"}
    assert not (tmp_path / "precision.json").exists()
    monkeypatch.setattr(checks, "fastest_precision", lambda accelerator: "32-true")
    assert planned_in() == {"precision=32-true"}
    monkeypatch.setattr(checks, "fastest_precision", lambda accelerator: "bf16-mixed")
    assert planned_in() == planned_in(planning=True) == {"precision=32-true"}
    assert planned_in("trainer.precision=bf16-mixed") == {"precision=bf16-mixed"}
    assert planned_in() == {"precision=32-true"}


def test_another_corpus_replaces_all_that_chose_the_users(tmp_path: Path) -> None:
    setup = Setup(PROFILES["smoke"], ("data=file", "data.path=book.txt", "optimizer.lr=1e-3"), tmp_path, planning=True)
    run = training(Arm(corpus=OtherCorpus("other", ("data=text8",))), 1, setup)
    chosen = [word for word in run.overrides if word.split("=")[0] in CORPUS_OPTIONS]
    assert chosen == ["data=text8"]
    assert "optimizer.lr=1e-3" in run.overrides


def test_a_shortened_published_model_is_as_long_as_the_profiles_own_runs() -> None:
    gpu = jobs.composed(("profile=gpu",)).trainer
    lengths = (f"trainer.max_steps={gpu.max_steps}", f"trainer.val_every_n_steps={gpu.val_every_n_steps}")
    assert PROFILES["gpu"].main_overrides == (*lengths, "optimizer.warmup_steps=1000")
    assert PROFILES["paper"].main_overrides == ()


def estimate(setup: Setup, found: list[Job]) -> float:
    """Return the hours that the jobs take one after the other."""
    return sum(map(Plan(setup, [], {}, [{}]).seconds, found)) / 3600


@pytest.mark.slow
def test_the_evening_has_every_row_with_two_seeds_or_three_and_fits_into_two_hours(tmp_path: Path) -> None:
    setup, found = planned("evening", tmp_path)
    arms: dict[str, list[int | None]] = {}
    for job in found:
        if job.command == "train":
            arms.setdefault(job.arm, []).append(job.seed)
    assert set(map(tuple, arms.values())) == {(1, 2), (1, 2, 3)}
    rows = [Arm(row.recurrence, row.encoding, row.loss) for row in TABLE_6]
    rows += [Arm(False, loss=loss, longer=length) for loss in ("full", "half") for length in LENGTHS]
    rows += [Arm(baseline="lstm"), Arm(baseline="qrnn"), Arm(False, "absolute"), Arm(False, "al_rfou")]
    assert set(arms) > {arm.title for arm in rows}
    assert sum("shuffled lines" in title for title in arms) == len(TABLE_7)
    assert estimate(setup, found) / 2 < 2  # two jobs at once


@pytest.mark.parametrize("profile", [pytest.param(name, marks=pytest.mark.slow) for name in ("gpu", "paper")])
def test_a_larger_profile_trains_the_published_models_and_estimates_them_by_size(profile: str, tmp_path: Path) -> None:
    setup, found = planned(profile, tmp_path)
    by_name = {job.name: job for job in found}
    assert by_name["published-wt103_base"].sections[:3] == ("main_results", "table_6", "table_8")
    ablation = by_name["recurrence-relative-full_loss-seed1"]
    assert token_cost(ablation, PROFILES[profile]) == 1
    assert token_cost(by_name["lstm-seed1"], PROFILES[profile]) == 1
    standard = by_name["published-wt103_base"]
    assert token_cost(standard, PROFILES[profile]) == pytest.approx({"gpu": 1.0, "paper": 1.3}[profile], abs=0.05)
    if profile == "paper":
        assert estimate(setup, [by_name["published-wt103_large"]]) > 24 * 14


@pytest.mark.slow
def test_the_plan_names_the_models_without_a_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TXL_DATA", raising=False)
    words = ["--profile", "gpu", "--plan", "--directory", str(tmp_path / "r"), f"data.cache_dir={tmp_path}/cache"]
    assert reproduce.main([*words, "--only", "main_results"]) == 0
    assert "TXL_DATA: enwik8_base, text8_base, lm1b_base_paper\n" in capsys.readouterr().out
