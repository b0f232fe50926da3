"""A long run needs no more memory at its end than near its beginning."""

import psutil
import pytest

from tests.training.small_run import patch_module, train_tiny


@pytest.mark.full
def test_resident_memory_does_not_grow(tmp_path, monkeypatch):
    resident = []  # every 50 steps

    def note(module):
        if module.trainer.global_step % 50 == 10:
            resident.append(psutil.Process().memory_info().rss)

    patch_module(monkeypatch, "training_step", before=note)
    every = ("trainer.val_every_n_steps=50", "checkpoint.every_n_steps=50")
    few = ("trainer.val_max_segments=5", "evaluation.max_segments=5")
    train_tiny(tmp_path, "trainer.max_steps=2000", "logger=csv", *every, *few)
    assert max(resident) < 1.02 * resident[4]
