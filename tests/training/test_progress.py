"""Output of a training: its progress on any terminal."""

import re
from pathlib import Path

from tests.fixtures import Output, Patch
from tests.training.small_run import tiny_config
from txl_lightning.training.callbacks import Progress
from txl_lightning.training.run import train


def test_progress_goes_on_through_validation_and_test(
    tmp_path: Path, monkeypatch: Patch, capsys: Output
) -> None:
    monkeypatch.setattr(Progress, "_is_due", lambda self: True)
    config = tiny_config(tmp_path, "trainer.progress_bar=true", "trainer.log_every_n_steps=1")

    train(config, tmp_path / "run")

    said = capsys.readouterr().err
    assert re.search(
        r"^7/12 steps, 0:00:0\d left, train/bpb \d\.\d{3}, [0-9,]+ tokens/s$", said, re.MULTILINE
    )
    assert re.search(r"^validation: segment 2 of \d+$", said, re.MULTILINE)
    assert re.search(r"^step 5: val/bpb \d\.\d{3}$", said, re.MULTILINE)
    assert re.search(r"^best weights, validation split: val/bpb", said, re.MULTILINE)
    assert re.search(r"^test: segment 2 of \d+$", said, re.MULTILINE)
