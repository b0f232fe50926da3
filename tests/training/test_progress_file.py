"""`progress.json`, written on request."""

import json
from pathlib import Path

import pytest

from tests.training.small_run import tiny_config
from txl_lightning.training import progress
from txl_lightning.training.run import train


def test_the_file_holds_steps_and_loss_and_is_written_only_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[dict[str, object]] = []
    write_json = progress.write_json

    def record(path: Path, state: dict[str, object]) -> None:
        written.append(state)
        write_json(path, state)

    monkeypatch.setattr(progress, "write_json", record)
    options = ("trainer.max_steps=4", "trainer.val_every_n_steps=4", "trainer.log_every_n_steps=2")
    train(tiny_config(tmp_path, *options), tmp_path / "without")
    assert not written
    assert not (tmp_path / "without" / "progress.json").exists()
    monkeypatch.setattr(progress, "EVERY_SECONDS", 0.0)
    train(tiny_config(tmp_path, *options, "trainer.progress_file=true"), tmp_path / "with")
    assert [state["steps"] for state in written] == [0, 1, 2, 3, 4, 4]
    losses = [state["loss"] for state in written]
    assert losses[0] is None
    assert losses[-1] is not None
    last = json.loads((tmp_path / "with" / "progress.json").read_text())
    assert last == written[-1]
    assert (last["max_steps"], last["unit"]) == (4, "bpc")
    assert set(last) == {"steps", "max_steps", "unit", "loss", "seconds"}


def test_a_full_disk_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(progress, "write_json", refuse)
    options = ("trainer.max_steps=2", "trainer.val_every_n_steps=2", "trainer.progress_file=true")
    assert train(tiny_config(tmp_path, *options), tmp_path / "run")["steps"] == 2
    assert "could not write progress.json: no space left on device; training continues" in capsys.readouterr().err
