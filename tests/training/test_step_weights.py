"""Weights kept every n steps: which, and what opens them."""

import json
from pathlib import Path

import pytest

from tests.training.small_run import tiny_config
from txl_lightning.errors import OptionError
from txl_lightning.evaluation.trained import load_trained, read_file
from txl_lightning.training.run import train

KEEP = ("checkpoint.keep_every_n_steps=4", "evaluation.max_segments=2")


def kept(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "checkpoints").glob("step*"))


def test_weights_of_steps_are_kept_and_open_everything_but_a_resume(tmp_path: Path) -> None:
    """Steps of an earlier run are removed, other files stay."""
    run, folder = tmp_path / "run", tmp_path / "run/checkpoints"
    train(tiny_config(tmp_path, *KEEP), run)
    assert kept(run) == ["step12.ckpt", "step4.ckpt", "step8.ckpt"]
    assert load_trained(folder / "step8.ckpt").step == 8
    weights, last = (
        read_file(folder / name)["state_dict"] for name in ("step12.ckpt", "last.ckpt")
    )
    assert all(weights[name].equal(tensor) for name, tensor in last.items())
    assert (folder / "step12.ckpt").stat().st_size < (folder / "last.ckpt").stat().st_size / 2
    with pytest.raises(OptionError, match=r"resume=.*step8.ckpt: holds weights only"):
        train(tiny_config(tmp_path, *KEEP, f"resume={folder / 'step8.ckpt'}"), tmp_path / "other")
    (folder / "step_mine.ckpt").touch()
    train(tiny_config(tmp_path, *KEEP, "trainer.max_steps=16", "resume=auto"), run)
    assert kept(run) == ["step12.ckpt", "step16.ckpt", "step4.ckpt", "step8.ckpt", "step_mine.ckpt"]
    train(
        tiny_config(tmp_path, "trainer.max_steps=3", "evaluation.max_segments=2", "resume=replace"),
        run,
    )
    assert kept(run) == ["step_mine.ckpt"]


def test_the_best_checkpoints_are_kept_also_by_a_run_that_resumes(tmp_path: Path) -> None:
    best = ("checkpoint.keep_best=2", "trainer.val_every_n_steps=3", "evaluation.max_segments=2")
    for run, steps in (("whole", 12), ("half", 9), ("half", 12)):
        words = (*best, f"trainer.max_steps={steps}", "optimizer.schedule=constant", "resume=auto")
        train(tiny_config(tmp_path, *words), tmp_path / run)
    rows = [
        json.loads(line) for line in (tmp_path / "whole/validation.jsonl").read_text().splitlines()
    ]
    steps = sorted(row["steps"] for row in sorted(rows, key=lambda row: row["val/nll"])[:2])
    assert len(rows) == 4
    for run in ("whole", "half"):
        folder = tmp_path / run / "checkpoints"
        found = {path.name: read_file(path)["global_step"] for path in folder.glob("best-*.ckpt")}
        assert found == {f"best-{step}.ckpt": step for step in steps}
