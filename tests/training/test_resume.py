"""A run that was killed or stopped and resumed equals an uninterrupted one."""

from __future__ import annotations

import atexit
import json
import shutil
import signal
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.recorded_run import recorded_losses, start
from tests.training.small_run import logged_rows, stored_memory
from txl_lightning.evaluation.trained import read_file

OPTIONS = (
    *(
        "trainer.val_every_n_steps=30",
        "trainer.val_max_segments=3",
        "evaluation.max_segments=3",
        "logger=csv",
    ),
    *(
        "checkpoint.every_n_steps=20",
        "model.dropout=0.2",
        "data.random_start=true",
        "loss=random_half",
    ),
    *("trainer.log_every_n_steps=7", "resume=auto"),
)
TWO = ("trainer.devices=2",)
KINDS = {
    "several loggers": ("logger=[csv,wandb]",),
    "compressive": ("variant=compressive", "variant.rate=2"),
}
KINDS |= {"lstm": ("model=lstm", "model.d_model=16")}
KILL, TERM, INT = signal.SIGKILL, signal.SIGTERM, signal.SIGINT


def outcome(directory: Path) -> dict[str, object]:
    """Return everything of a run that must not depend on interruptions."""
    run = directory / "run"
    last = read_file(run / "checkpoints/last.ckpt")
    memory = stored_memory(run / "checkpoints/last.ckpt").state_dict()
    metrics = json.loads((run / "metrics.json").read_text())
    validations = [json.loads(line) for line in (run / "validation.jsonl").read_text().splitlines()]
    curve = logged_rows(run / "csv")
    for row in validations + curve:
        for name in ("seconds", "train/tokens_per_second", "train/peak_memory_bytes"):
            row.pop(name, None)
    return {
        "metrics": {
            name: metrics[name] for name in ("steps", "tokens", "val/nll", "test/nll", "weights")
        },
        "validation": validations,
        "curve": curve,
        "weights": {name: tensor.tolist() for name, tensor in last["state_dict"].items()},
        "memory": {name: torch.as_tensor(x).tolist() for name, x in memory.items()},
        "best": read_file(run / "checkpoints/best.ckpt")["global_step"],
    }


@cache
def uninterrupted(*options: str) -> Path:
    """Train without interruption, once for all tests."""
    directory = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    start(directory, *options).succeed()
    return directory


@pytest.mark.parametrize(
    ("more", "steps", "events"),
    [
        (
            (),
            64,
            [(11, KILL), (30, TERM), (56, TERM), (61, KILL)],
        ),  # step 30 validates, step 56 ends an epoch
        pytest.param(TWO, 50, [(27, KILL), (43, KILL)], marks=pytest.mark.slow),
        # the ranks by turns
        pytest.param(
            TWO, 200, [(27, KILL), (90, KILL), (112, INT), (141, TERM)], marks=pytest.mark.full
        ),
        *(
            pytest.param(more, 50, [(27, KILL), (43, KILL)], marks=pytest.mark.full)
            for more in KINDS.values()
        ),
    ],
    ids=[
        "in short",
        "in short, 2 processes",
        "killed and stopped, 2 processes",
        *KINDS,
    ],
)
def test_interruptions_change_no_bit(
    tmp_path: Path, more: tuple[str, ...], steps: int, events: Any
) -> None:
    options = (*OPTIONS, f"trainer.max_steps={steps}", *more)
    for i, (at, number) in enumerate(events):
        broken = start(
            tmp_path, *options, at=at, signal=number, rank=i % (2 if more == TWO else 1)
        ).finish()
        assert broken.returncode != 0 or number != KILL
        if number != KILL:
            assert f"stopped by {signal.Signals(number).name} after step {at}" in broken.stdout, (
                broken.stderr
            )
            assert read_file(tmp_path / "run/checkpoints/last.ckpt")["global_step"] == at
        assert not (tmp_path / "run/metrics.json").exists()
    start(tmp_path, *options).succeed()
    whole = uninterrupted(*options)
    expected = dict(recorded_losses(whole / "run"))
    losses = recorded_losses(tmp_path / "run")
    assert len(expected) == steps
    assert set(losses) == set(expected.items())
    found = outcome(tmp_path)
    for name, value in outcome(whole).items():
        assert found[name] == value, name
