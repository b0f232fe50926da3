"""Arms beyond the paper: planned on request only, beside Table 6's, at equal parameters and equal memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from experiments.engine.jobs import composed
from experiments.engine.profiles import PROFILES, Setup
from experiments.tables import beyond
from experiments.tables.arms import Arm, training
from txl_lightning.config.lengths import tokens_per_step
from txl_lightning.config.schemas import Config
from txl_lightning.runs.models import make_model

BYTES, WORDS = 205, 267_735


def setup_of(profile: str, tmp_path: Path, *overrides: str) -> Setup:
    return Setup(PROFILES[profile], overrides, tmp_path, planning=True)


def config_of(arm: Arm, tmp_path: Path, profile: str = "laptop") -> Config:
    return composed(training(arm, 1, setup_of(profile, tmp_path)).overrides)


def parameters(config: Config) -> int:
    with torch.device("meta"):
        model = make_model(config, WORDS if config.data.level == "word" else BYTES)
    return sum(p.numel() for name, p in model.named_parameters() if not name.startswith("compressor."))


@pytest.mark.parametrize("profile", ["laptop", pytest.param("paper", marks=pytest.mark.slow)])
def test_every_arm_composes_and_has_as_many_parameters(profile: str, tmp_path: Path) -> None:
    runs = beyond._runs(setup_of(profile, tmp_path))
    assert len(runs) == len(beyond.ARMS) + len(beyond.PARTS) - (profile == "paper")  # Adam has no joint matrix
    expected = parameters(config_of(beyond.ON, tmp_path, profile))
    for arm in runs:
        assert parameters(config_of(arm, tmp_path, profile)) == pytest.approx(expected, rel=0.01), arm.title


def test_arms_that_claims_compare_have_two_seeds_or_three_and_the_widths_are_multiples_of_eight(tmp_path: Path) -> None:
    assert [beyond.gated_width(width) for width in (384, 2048, 1536, 8)] == [256, 1368, 1024, 8]
    runs = beyond._runs(setup_of("laptop", tmp_path))
    assert {arm: len(runs[arm]) for arm in beyond.ARMS.values()} == {
        arm: 3 if arm in (beyond.ON, beyond.OFF) else 2 for arm in beyond.ARMS.values()
    }
    assert {len(runs[arm]) for arm in beyond.WITHOUT.values()} == {1}
    compared = {arm for _, better, worse, _ in beyond.COMPARED for arm in (better, worse)}
    assert compared == set(beyond.ARMS.values())


def test_half_of_the_memory_is_compressed_and_the_states_are_as_many(tmp_path: Path) -> None:
    plain = config_of(beyond.ON, tmp_path).memory
    for arm, function in ((beyond.POOLED, "mean"), (beyond.CONVOLVED, "conv")):
        memory = config_of(arm, tmp_path).memory
        assert memory.mem_len == memory.compressed_len == plain.mem_len / 2
        assert (memory.compression, memory.rate) == (function, beyond.RATE)


def test_gradients_reach_further_at_equal_tokens_and_memories_have_as_many_states(tmp_path: Path) -> None:
    plain = config_of(beyond.ON, tmp_path)
    for arm in beyond.ARMS.values():
        assert tokens_per_step(config_of(arm, tmp_path)) == tokens_per_step(plain), arm.title
    assert {k: config_of(arm, tmp_path).memory.gradient_segments for k, arm in beyond.THROUGH.items()} == {1: 1, 3: 3}
    for n, arm in beyond.TOKENS.items():
        memories = [config_of(one, tmp_path).memory for one in (arm, beyond.BOTH[n])]
        assert [memory.n_tokens for memory in memories] == [n, n]
        assert [memory.mem_len for memory in memories] == [0, plain.memory.mem_len]


def test_the_recipe_is_the_one_of_the_experiment(tmp_path: Path) -> None:
    plain, modern = (config_of(arm, tmp_path) for arm in (beyond.ON, beyond.MODERN))
    experiment = composed(("experiment=laptop_modern",))
    assert (modern.model, modern.optimizer) == (experiment.model, experiment.optimizer)
    same_rate = replace(modern.optimizer, lr=plain.optimizer.lr)
    assert replace(modern, model=plain.model, optimizer=same_rate) == plain
    options = {"pre-norm": {"pre_norm", "final_norm"}, "RMSNorm": {"norm"}, "QK-norm": {"qk_norm"}}
    options |= {"gated feed-forward": {"feed_forward", "d_inner"}, "separate qkv": {"split_qkv"}}
    for part, arm in beyond.WITHOUT.items():
        changed = vars(config_of(arm, tmp_path).model).items() ^ vars(modern.model).items()
        changed |= vars(config_of(arm, tmp_path).optimizer).items() ^ vars(modern.optimizer).items()
        assert {name for name, _ in changed} == options[part]
    assert config_of(beyond.WITHOUT["gated feed-forward"], tmp_path).model.d_inner == plain.model.d_inner
