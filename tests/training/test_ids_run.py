"""Runs on token ids: every command on their checkpoints, resume, several ranks, and files that have moved."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from tests.training.small_run import evaluated, train_tiny
from txl_lightning.errors import OptionError, UserError
from txl_lightning.evaluation import generate
from txl_lightning.evaluation.options import GenerateOptions

IDS = np.arange(4000) ** 2 % 53
BEST = "run/checkpoints/best.ckpt"
SHORT = ("trainer.max_steps=6", "trainer.val_every_n_steps=3", "memory=on", "data.level=ids")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `notes.bin`, named by a relative path, and the run; the names are deleted."""
    folder = tmp_path_factory.mktemp("ids")
    IDS.astype(np.uint16).tofile(folder / "notes.bin")
    (folder / "names.txt").write_text("\n".join(f"n{number}" for number in range(60)))
    options = ("data.path=notes.bin", "data.dtype=uint16", "data.names=names.txt")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        train_tiny(folder, *SHORT, *options)
    (folder / "names.txt").unlink()
    return folder


def evaluation(folder: Path, directory: Path, **options: Any) -> dict[str, Any]:
    result = evaluated(folder / BEST, directory, **options)
    return result.get("whole", result.get("test")) | {"seconds": 0}


def test_a_run_with_a_relative_path_is_evaluated_from_another_folder(run, tmp_path):
    metrics = json.loads((run / "run/metrics.json").read_text())
    assert OmegaConf.load(run / "run/config.yaml").data.path == str(run / "notes.bin")
    result = evaluation(run, tmp_path)
    assert result["nll"] == pytest.approx(metrics["test/nll"], rel=1e-6)
    assert result["bytes"] is None  # not known
    assert "test/bpb" not in metrics


def test_files_that_have_moved_are_named_with_data_path(run, tmp_path):
    before = evaluation(run, tmp_path)
    moved = tmp_path / "moved.bin"
    (run / "notes.bin").rename(moved)
    words = r"corpus of .*best.ckpt: data.path=.*notes.bin: .*if it has moved, give d"
    try:
        with pytest.raises(UserError, match=words):
            evaluation(run, tmp_path)
        assert evaluation(run, tmp_path, data_path=str(moved)) == before
    finally:
        moved.rename(run / "notes.bin")


def test_ids_are_continued_and_written(run, tmp_path):
    def generated(**prompt):
        generate.run(
            GenerateOptions(
                str(run / BEST),
                n_tokens=5,
                **prompt,
            ),
            tmp_path,
        )
        return json.loads((tmp_path / "generation.json").read_text())

    by_names = generated(prompt="n1 n4 n9")
    assert by_names["prompt"] == {"tokens": [1, 4, 9], "text": "n1 n4 n9"}
    (sample,) = by_names["samples"]
    assert sample["text"] == " ".join(f"n{number}" for number in sample["tokens"])
    assert generated(prompt_ids=[1, 4, 9])["samples"] == [sample]
    with pytest.raises(OptionError, match=r"^prompt='n60': 'n60' is not among"):
        generated(prompt="n60")
    with pytest.raises(OptionError, match=r"^prompt_ids=.*: must be a list of ids from 0 to 59"):
        generated(prompt_ids=[60])


def test_a_resumed_run_continues_with_a_moved_file(tmp_path):
    path = tmp_path / "notes.npy"
    moved = tmp_path / "moved.npy"
    np.save(path, IDS)
    options = (*SHORT, "optimizer.schedule=constant", "resume=auto")
    whole = train_tiny(
        tmp_path,
        *options,
        f"data.path={path}",
        name="whole",
    )
    train_tiny(
        tmp_path,
        *options,
        f"data.path={path}",
        "trainer.max_steps=3",
    )
    path.rename(moved)
    resumed = train_tiny(
        tmp_path,
        *options,
        f"data.path={moved}",
    )
    assert resumed["test/nll"] == whole["test/nll"]
