"""Arms: their recipes, the user's options, and the memory that a training segment takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from experiments.arms import Arm, check_overrides, trainings
from experiments.engine.jobs import composed
from experiments.engine.profiles import PROFILES, Setup
from txl_lightning.config.schemas import Config
from txl_lightning.errors import OptionError

LRS = {
    "no_recurrence": 1e-3,
    "shaw": 2e-3,
    "al_rfou": 3e-3,
    "lstm": 4e-3,
    "qrnn": 5e-3,
    "adam": 6e-3,
}


def config_of(arm: Arm, folder: Path, *overrides: str) -> Config:
    recipes = {name: [f"optimizer.lr={lr}"] for name, lr in LRS.items()}
    profile = replace(
        PROFILES["smoke"],
        recipes=recipes,
        seeds_of={},
    )
    (job,) = trainings(
        arm,
        Setup(profile, overrides, folder, planning=True),
    )
    return composed(job.overrides)


@pytest.mark.parametrize(
    ("arm", "lr"),
    [
        (Arm(loss="half"), 9e-3),
        (Arm(recurrence=False), LRS["no_recurrence"]),
        (Arm(recurrence=False, encoding="al_rfou"), LRS["al_rfou"]),
        (Arm(baseline="qrnn"), LRS["qrnn"]),
        (Arm(optimizer="adam"), LRS["adam"]),
    ],
)
def test_an_arm_has_the_recipe_of_its_family(arm: Arm, lr: float, tmp_path: Path) -> None:
    optimizer = config_of(arm, tmp_path, "optimizer=muon", "optimizer.lr=9e-3").optimizer
    assert optimizer.lr == lr
    assert optimizer.name == (arm.optimizer or "muon")


def test_longer_segments_read_as_many_tokens(tmp_path: Path) -> None:
    recurrent = config_of(Arm(), tmp_path)
    longer = config_of(Arm(recurrence=False, longer=True), tmp_path)
    assert longer.data.segment_len == 40 > recurrent.data.segment_len
    tokens = recurrent.trainer.max_steps * recurrent.data.segment_len
    difference = longer.trainer.max_steps * 40 - tokens
    assert abs(difference) <= 40 / 2  # half a step


@pytest.mark.parametrize("word", ["seed=7", "memory=off", "encoding.name=shaw", "logger=csv"])
def test_options_of_the_arms_are_refused(word: str) -> None:
    with pytest.raises(OptionError, match="the experiments set it"):
        check_overrides([word])


def test_other_options_reach_the_arms_that_they_apply_to(tmp_path: Path) -> None:
    words = ("memory.mem_len=48", "model.n_layer=4", "evaluation.clamp_len=10")
    check_overrides(words)
    on = config_of(Arm(), tmp_path, *words)
    off = config_of(Arm(recurrence=False), tmp_path, *words)
    lstm = config_of(Arm(baseline="lstm"), tmp_path, *words)
    assert (on.memory.mem_len, off.memory.mem_len) == (48, 0)
    assert (on.model.n_layer, lstm.model.n_layer) == (4, 2)
    assert (on.evaluation.clamp_len, lstm.evaluation.clamp_len) == (10, None)


def test_shuffled_lines_replace_all_that_chose_the_users_text(tmp_path: Path) -> None:
    arm = Arm(corpus=("data=text8",))
    config = config_of(arm, tmp_path, "data=file", "data.path=book.txt", "optimizer.lr=2e-3")
    assert config.data.name == "text8"
    assert config.optimizer.lr == 2e-3
