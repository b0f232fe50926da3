"""Arms: their recipes, the user's options, and the memory that a training segment takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from experiments.arms import CORPUS_OPTIONS, Arm, OtherCorpus, check_overrides, longest_segment, saved_bytes, training
from experiments.engine.jobs import composed
from experiments.engine.profiles import PROFILES, Setup
from txl_lightning.config.schemas import Config
from txl_lightning.errors import OptionError

FAMILIES = ("no_recurrence", "shaw", "absolute", "al_rfou", "lstm", "qrnn", "adam")
LRS = {name: (i + 1) * 1e-3 for i, name in enumerate(FAMILIES)}


def config_of(arm: Arm, tmp_path: Path, *overrides: str) -> Config:
    recipes = {name: (f"optimizer.lr={lr}",) for name, lr in LRS.items()}
    profile = replace(PROFILES["smoke"], longer_segment=None, recipes=recipes)
    return composed(training(arm, 1, Setup(profile, overrides, tmp_path, planning=True)).overrides)


@pytest.mark.parametrize(
    ("arm", "family"),
    [
        (Arm(loss="half"), None),
        (Arm(False, loss="half", longer=True), "no_recurrence"),
        (Arm(False, "al_rfou"), "al_rfou"),
        (Arm(baseline="qrnn"), "qrnn"),
        (Arm(optimizer="adam"), "adam"),
    ],
)
def test_an_arm_has_the_recipe_of_its_family(arm: Arm, family: str | None, tmp_path: Path) -> None:
    optimizer = config_of(arm, tmp_path, "optimizer=muon", "optimizer.lr=9e-3").optimizer
    assert optimizer.lr == pytest.approx(LRS[family] if family else 9e-3)
    assert optimizer.name == (arm.optimizer or "muon")


def test_longer_segments_take_no_more_memory_than_recurrence_and_read_as_many_tokens(tmp_path: Path) -> None:
    recurrent, longer = (config_of(arm, tmp_path, "data.level=byte") for arm in (Arm(), Arm(False, longer=True)))
    longest = longer.data.segment_len
    assert (longest, longest % 8) == (longest_segment(recurrent), 0)
    assert longest > recurrent.data.segment_len
    one_more = replace(longer, data=replace(longer.data, segment_len=longest + 8))
    assert saved_bytes(longer) <= saved_bytes(recurrent) < saved_bytes(one_more)
    steps = [config.trainer.max_steps * config.data.segment_len for config in (recurrent, longer)]
    assert abs(steps[0] - steps[1]) <= longest / 2  # half a step
    gpu = Setup(PROFILES["gpu"], (), tmp_path, planning=True)
    assert composed(training(Arm(False, longer=True), 1, gpu).overrides).data.segment_len == 176


@pytest.mark.parametrize(
    "word", ["seed=7", "memory=off", "encoding=shaw", "loss=half", "logger=csv", "trainer.devices=2"]
)
def test_options_of_the_arms_are_refused(word: str) -> None:
    with pytest.raises(OptionError, match="the experiments set it"):
        check_overrides((word,))


def test_other_options_reach_the_arms_that_they_apply_to(tmp_path: Path) -> None:
    words = ("memory.mem_len=48", "data.segment_len=64", "model.n_layer=4", "evaluation.clamp_len=10")
    check_overrides(words)
    setup = Setup(PROFILES["laptop"], words, tmp_path)
    arms = (Arm(True), Arm(False), Arm(baseline="lstm"))
    on, off, lstm = (composed(training(arm, 1, setup).overrides) for arm in arms)
    assert (on.memory.mem_len, off.memory.mem_len, on.data.segment_len) == (48, 0, 64)
    assert (on.model.n_layer, lstm.model.n_layer, lstm.model.name) == (4, 2, "lstm")
    assert (on.evaluation.clamp_len, lstm.evaluation.clamp_len) == (10, None)


def test_another_corpus_replaces_all_that_chose_the_users(tmp_path: Path) -> None:
    setup = Setup(PROFILES["smoke"], ("data=file", "data.path=book.txt", "optimizer.lr=1e-3"), tmp_path, planning=True)
    run = training(Arm(corpus=OtherCorpus("other", ("data=text8",))), 1, setup)
    assert [word for word in run.overrides if word.split("=")[0] in CORPUS_OPTIONS] == ["data=text8"]
    assert "optimizer.lr=1e-3" in run.overrides
