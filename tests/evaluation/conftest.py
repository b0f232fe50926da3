"""What several tests of evaluation measure."""

from pathlib import Path

import pytest

from tests.evaluation.small_runs import KINDS
from tests.training.small_run import tiny_config
from txl_lightning.training.run import train


@pytest.fixture(scope="session")
def trained_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One short run of every kind, `KIND/checkpoints/best.ckpt`, on `text.txt`."""
    directory = tmp_path_factory.mktemp("runs")
    for kind, overrides in KINDS.items():
        config = tiny_config(directory, "trainer.max_steps=4", "trainer.val_every_n_steps=4", *overrides)
        train(config, directory / kind)
    return directory
