"""A long run needs no more memory at its end than near its beginning."""

from pathlib import Path

import psutil
import pytest

from tests.fixtures import Patch
from tests.training.small_run import patch_module, train_tiny
from txl_lightning.training.module import LanguageModelModule


@pytest.mark.full
def test_resident_memory_does_not_grow(tmp_path: Path, monkeypatch: Patch) -> None:
    resident: list[int] = []  # every 50 steps

    def note(module: LanguageModelModule) -> None:
        if module.trainer.global_step % 50 == 10:
            resident.append(psutil.Process().memory_info().rss)

    patch_module(monkeypatch, "training_step", before=note)
    every = ("trainer.val_every_n_steps=50", "checkpoint.every_n_steps=50")
    few = ("trainer.val_max_segments=5", "evaluation.max_segments=5")
    train_tiny(tmp_path, "trainer.max_steps=2000", "logger=csv", *every, *few)
    assert max(resident) < 1.02 * resident[4]
