"""The numbers do not depend on how many processes share the global batch, nor on groups of streams."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from tests.training.recorded_run import recorded_losses, recorded_runs, run_on_all
from tests.training.small_run import stored_memory, tiny_config
from tests.variants.test_variants import VARIANTS
from txl_lightning.config.schemas import plain

OPTIONS = (
    "trainer.max_steps=30",
    "trainer.val_every_n_steps=15",
    "checkpoint.every_n_steps=10",
    "data.batch_size=8",
    "evaluation.batch_size=5",
    "data.random_start=true",
    "model.dropout=0",
)
DOUBLE = "trainer.precision=64-true"
GROUPS = "trainer.stream_groups=2"
SEGMENTS = ("memory.gradient_segments=1", "loss=random_half", "data.batch_size=9")
ARMS = {
    "single": (),
    "double": (DOUBLE,),
    "groups": (GROUPS,),
    "clusters": ("model.cutoffs=[20,40,100]", "model.div_val=2"),
    "documents": ("memory.reset=document", "data.document_start='^line .*5:'", DOUBLE),
    "random half": ("loss=random_half", GROUPS, DOUBLE),
    "gradient segments": (*SEGMENTS, GROUPS, DOUBLE),
    "recurrent": ("model=lstm", "model.d_model=16", "model.hidden_dropout=0"),
}

FEW = ["documents", "gradient segments"]  # `make test-all` takes all arms


VARIANT_ARMS = {}
for variant, words in VARIANTS.items():
    options = (f"variant={variant}", *words, "data.batch_size=9", GROUPS, DOUBLE)
    VARIANT_ARMS[f"variant {variant}"] = options
ARMS |= VARIANT_ARMS


def run_all(base: Path, arms: Iterable[str], worlds: tuple[int, ...]) -> Path:
    """Train arms on several numbers of processes, and a run of 10 steps on 2 processes, resumed on all numbers."""
    ragged = ("optimizer.schedule=constant", "data.batch_size=7")
    overrides = {arm: ARMS[arm] for arm in arms}
    overrides["half"] = ("trainer.max_steps=10", *ragged)
    overrides["resumed"] = (f"resume={base / 'half2/checkpoints/last.ckpt'}", *ragged)
    for W in worlds:
        jobs = []
        for name, words in overrides.items():
            config = tiny_config(
                base,
                *OPTIONS,
                f"trainer.devices={W}",
                *words,
            )
            jobs.append((plain(config), str(base / f"{name}{W}"), {}))
        if W == 1:
            recorded_runs(jobs)
        else:
            run_on_all(jobs, W)
        overrides.pop("half", None)  # the first number is 2
    return base


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_all(
        tmp_path_factory.mktemp("ranks"),
        ARMS,
        (2, 3, 1),
    )


def differences(runs: Path, first: str, second: str) -> float:
    """The largest difference of the losses of a step."""
    largest = 0.0
    losses = (recorded_losses(runs / first), recorded_losses(runs / second))
    for (step, a), (other_step, b) in zip(*losses, strict=True):
        assert step == other_step
        largest = max(largest, abs(a - b))
    assert len(losses[0]) >= 20
    return largest


def check_losses(runs: Path, arm: str, worlds: tuple[int, ...], tolerance: float) -> None:
    one = json.loads((runs / f"{arm}1/metrics.json").read_text())
    for W in worlds:
        several = json.loads((runs / f"{arm}{W}/metrics.json").read_text())
        assert differences(runs, f"{arm}1", f"{arm}{W}") < tolerance
        assert several["processes"] == W
        for name in ("val/nll", "test/nll"):
            assert several[name] == pytest.approx(one[name], abs=tolerance)
        for name in ("val/tokens", "test/tokens", "tokens"):
            assert several[name] == one[name]  # 5 evaluation streams do not divide by 2 or 3


def check_resumed(runs: Path, W: int) -> None:
    assert [step for step, _ in recorded_losses(runs / "resumed1")] == list(range(11, 31))
    assert differences(runs, "resumed2", f"resumed{W}") < 1e-5
    states = [stored_memory(runs / f"resumed{n}/checkpoints/last.ckpt").states for n in (2, W)]
    torch.testing.assert_close(
        *states,
        atol=1e-5,
        rtol=1e-4,
    )


def test_two_processes_train_like_one_and_one_resumes_their_checkpoint(tmp_path):
    run_all(tmp_path, FEW, (2, 1))
    for arm in FEW:
        check_losses(tmp_path, arm, (2,), 1e-10)
    check_resumed(tmp_path, 1)


@pytest.mark.slow
def test_two_processes_train_every_variant_like_one(tmp_path):
    run_all(tmp_path, VARIANT_ARMS, (2, 1))
    for arm in VARIANT_ARMS:
        check_losses(tmp_path, arm, (2,), 1e-10)


@pytest.mark.full
@pytest.mark.parametrize("arm", ARMS)
def test_losses_of_one_two_and_three_processes_are_the_same(runs, arm):
    check_losses(
        runs,
        arm,
        (2, 3),
        1e-10 if DOUBLE in ARMS[arm] else 1e-5,
    )


@pytest.mark.full
def test_groups_of_streams_change_nothing(runs):
    for W in (1, 2, 3):
        assert differences(runs, f"single{W}", f"groups{W}") < 1e-5


@pytest.mark.full
@pytest.mark.parametrize("W", [1, 3])
def test_a_checkpoint_of_two_processes_resumes_on_one_and_three(runs, W):
    check_resumed(runs, W)
