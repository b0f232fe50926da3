"""A long run needs no more memory at its end than near its beginning."""

from pathlib import Path

import psutil
import pytest

from tests.training.small_run import train_tiny
from txl_lightning.training.module import LanguageModelModule


@pytest.mark.full
def test_resident_memory_does_not_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resident: dict[int, int] = {}
    original = LanguageModelModule.training_step

    def step(self: LanguageModelModule, batch: object, batch_idx: int) -> object:
        if self.trainer.global_step % 50 == 10:
            resident[self.trainer.global_step] = psutil.Process().memory_info().rss
        return original(self, batch, batch_idx)  # type: ignore[arg-type]

    monkeypatch.setattr(LanguageModelModule, "training_step", step)
    every = (
        "trainer.val_every_n_steps=50",
        "checkpoint.every_n_steps=50",
        "trainer.val_max_segments=5",
    )
    options = (
        "trainer.max_steps=2000",
        "logger=csv",
        "trainer.log_every_n_steps=10",
        "evaluation.max_segments=5",
    )
    train_tiny(tmp_path, *every, *options)
    settled = resident[210]
    assert max(value for at, value in resident.items() if at > 210) < 1.02 * settled, resident
