"""A checkpoint file is complete, or recognised as damaged."""

from __future__ import annotations

import io
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from txl_lightning.errors import OptionError
from txl_lightning.evaluation.trained import read_file
from txl_lightning.evaluation.trained import write_checkpoint as write

OLD = Path(__file__).parents[1] / "old_checkpoint/relative.ckpt"
CONTENTS = {
    "weights": torch.arange(500.0),
    "step": 3,
    "nested": {"half": torch.ones(3, dtype=torch.bfloat16)},
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("good") / "a.ckpt"
    write(CONTENTS, path)
    return path


def test_a_written_file_is_read_by_us_and_by_torch(good):
    for contents in (
        read_file(good),
        torch.load(good, weights_only=True),
        torch.load(good, mmap=True),
    ):
        assert contents["step"] == 3
        assert torch.equal(contents["weights"], CONTENTS["weights"])
        assert contents["nested"]["half"].dtype == torch.bfloat16
    assert [path.name for path in good.parent.iterdir() if path.name != "flipped"] == ["a.ckpt"]


def saved(contents: Any) -> bytes:
    """Return the bytes of a file with these contents."""
    file = io.BytesIO()
    torch.save(contents, file)
    return file.getvalue()


@pytest.mark.parametrize("version", ["this", "0.5.0"])
@settings(max_examples=150, deadline=None)
@given(
    place=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
)
def test_a_flipped_bit_is_recognised_or_changes_nothing(good, version, place, bit):
    """Bits that pad a record, or say which program wrote it, change nothing."""
    original = good if version == "this" else OLD
    data = bytearray(original.read_bytes())
    data[int(place * len(data))] ^= 1 << bit
    path = good.parent / "flipped"
    path.write_bytes(data)
    try:
        contents = read_file(path)
    except OptionError:
        return
    finally:
        path.unlink()
    assert saved(contents) == saved(read_file(original))


def test_a_file_of_torch_is_read_and_no_file_is_not(tmp_path):
    torch.save(CONTENTS, tmp_path / "plain")
    assert (read_file(tmp_path / "plain")["step"], read_file(OLD)["global_step"]) == (3, 15)
    (tmp_path / "empty").touch()
    with pytest.raises(OptionError, match="is damaged, or is not a checkpoint"):
        read_file(tmp_path / "empty")
    with pytest.raises(OptionError, match="no such file"):
        read_file(tmp_path / "none")


def test_a_file_that_could_not_be_read_does_not_replace_one_that_can(tmp_path):
    write(CONTENTS, tmp_path / "a")
    with pytest.raises(UnpicklingError, match="Weights only load failed"):
        write(
            {**CONTENTS, "step": np.float64(1.0)},
            tmp_path / "a",
        )
    assert read_file(tmp_path / "a")["step"] == 3
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
