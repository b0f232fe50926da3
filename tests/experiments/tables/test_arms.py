"""Arms: their recipes, segments and evaluation; the memory that a training segment takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from experiments.engine.jobs import composed
from experiments.engine.profiles import PROFILES, Setup
from experiments.tables.arms import ADAM, Arm, Variant, training
from experiments.tables.memory import longest_segment, saved_bytes
from txl_lightning.config.schemas import Config

LRS = {"no_recurrence": 1e-3, "shaw": 2e-3, "absolute": 3e-3, "lstm": 4e-3, "qrnn": 5e-3, "adam": 6e-3}
HALF = Variant("half", lambda config: (), segment=0.5)


def config_of(arm: Arm, tmp_path: Path, *overrides: str) -> Config:
    profile = replace(PROFILES["smoke"], recipes={name: (f"optimizer.lr={lr}",) for name, lr in LRS.items()})
    return composed(training(arm, 1, Setup(profile, overrides, tmp_path, planning=True)).overrides)


@pytest.mark.parametrize(
    ("arm", "family"),
    [
        (Arm(), None),
        (Arm(loss="half"), None),
        (Arm(False), "no_recurrence"),
        (Arm(False, loss="half", longer="equal tokens"), "no_recurrence"),
        (Arm(False, "rope", variant=Variant("other", lambda config: ())), "no_recurrence"),
        (Arm(False, "shaw"), "shaw"),
        (Arm(True, "shaw"), "shaw"),
        (Arm(False, "absolute", "half"), "absolute"),
        (Arm(False, "al_rfou"), "absolute"),
        (Arm(baseline="lstm"), "lstm"),
        (Arm(baseline="qrnn"), "qrnn"),
        (Arm(variant=ADAM), "adam"),
        (Arm(False, variant=ADAM), "adam"),
    ],
)
def test_an_arm_has_the_recipe_of_its_family(arm: Arm, family: str | None, tmp_path: Path) -> None:
    optimizer = config_of(arm, tmp_path, "optimizer=muon", "optimizer.lr=9e-3").optimizer
    assert optimizer.lr == (LRS[family] if family else 9e-3)
    assert optimizer.name == ("adam" if arm.variant == ADAM else "muon")


def test_a_random_half_has_its_own_name() -> None:
    arm = Arm(False, "absolute", "random_half")
    assert arm.title == "no recurrence, Vaswani, random half loss"
    assert arm.key == "no_recurrence-absolute-random_half_loss"


@pytest.mark.parametrize("arm", [Arm(), Arm(True, "shaw"), Arm(loss="half")])
def test_with_recurrence_validation_has_the_segments_of_training(arm: Arm, tmp_path: Path) -> None:
    config = config_of(arm, tmp_path)
    assert (config.evaluation.segment_len, config.evaluation.ext_len, config.trainer.val_max_segments) == (32, None, 4)


@pytest.mark.parametrize(
    ("arm", "scored"),
    [
        (Arm(False), 8),
        (Arm(False, "al_rfou"), 8),
        (Arm(False, "shaw", "half"), 16),
        (Arm(False, longer="equal tokens"), 11),
        (Arm(False, loss="half", longer="equal tokens"), 22),
        (Arm(False, variant=HALF), 4),
    ],
)
def test_without_memory_validation_is_in_windows_of_the_segment_over_as_many_tokens(
    arm: Arm, scored: int, tmp_path: Path
) -> None:
    config = config_of(arm, tmp_path)
    assert config.evaluation.segment_len == scored
    assert scored + (config.evaluation.ext_len or 0) == config.data.segment_len
    tokens = [n * scored for n in (config.trainer.val_max_segments or 0, config.evaluation.max_segments or 0)]
    assert tokens == pytest.approx([4 * 32, 10 * 32], abs=scored)


def test_segments_of_another_length_read_as_many_tokens_in_training(tmp_path: Path) -> None:
    plain = config_of(Arm(False), tmp_path)
    arms = {Arm(variant=HALF): (16, 1.0, 2.0), Arm(False, longer="equal tokens"): (44, 32 / 44, 1.0)}
    arms[Arm(False, longer="equal steps")] = (44, 1.0, 1.0)
    for arm, (segment_len, share, streams) in arms.items():
        config = config_of(arm, tmp_path)
        assert (config.data.segment_len, config.data.batch_size) == (segment_len, streams * plain.data.batch_size)
        assert config.trainer.max_steps == round(plain.trainer.max_steps * share)
        assert config.memory.mem_len == (segment_len if arm.recurrence else 0)


def test_the_longest_segment_takes_no_more_memory_than_recurrence(tmp_path: Path) -> None:
    recurrent, arm = config_of(Arm(), tmp_path), Arm(False, longer="equal memory")
    longer = config_of(arm, tmp_path)
    longest, step = longer.data.segment_len, 8
    assert (longest, longest % step) == (longest_segment(recurrent), 0)
    assert longest > recurrent.data.segment_len
    one_more = replace(longer, data=replace(longer.data, segment_len=longest + step))
    assert saved_bytes(longer) <= saved_bytes(recurrent) < saved_bytes(one_more)
    assert longer.trainer.max_steps == round(recurrent.trainer.max_steps * 32 / longest)


def test_saved_bytes_count_each_storage_once_and_no_weights(tmp_path: Path) -> None:
    """One stream more costs as much as any other, and less than its activations copied for each layer's products."""
    config = config_of(Arm(), tmp_path)
    one, two, three = (saved_bytes(replace(config, data=replace(config.data, batch_size=n))) for n in (1, 2, 3))
    assert two - one == three - two > 0
    weights = 4 * 256 * config.model.d_model  # type: ignore[union-attr]
    assert one - (two - one) < weights  # of a batch of none: positions, but no embedding
    assert torch.is_grad_enabled()
