"""A checkpoint file is complete, or recognised as damaged."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from txl_lightning.errors import OptionError
from txl_lightning.runs.storage import DurableCheckpoints, read_file
from txl_lightning.runs.storage import write_checkpoint as write

CONTENTS = {"weights": torch.arange(500.0), "step": 3, "nested": {"half": torch.ones(3, dtype=torch.bfloat16)}}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("good") / "a.ckpt"
    write(CONTENTS, path)
    return path


@pytest.fixture
def small_disk() -> Iterator[None]:
    """Limit files to 1,000 bytes, in place of a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_written_file_is_read_by_us_and_by_torch(good: Path) -> None:
    for contents in (read_file(good), torch.load(good, weights_only=True), torch.load(good, mmap=True)):
        assert contents["step"] == 3
        assert torch.equal(contents["weights"], CONTENTS["weights"])
        assert contents["nested"]["half"].dtype == torch.bfloat16
    assert [path.name for path in good.parent.iterdir()] == ["a.ckpt"]


@settings(max_examples=150, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_anywhere_is_recognised(good: Path, place: float, bit: int) -> None:
    data = bytearray(good.read_bytes())
    data[int(place * len(data))] ^= 1 << bit
    path = good.parent / "flipped"
    path.write_bytes(data)
    with pytest.raises(OptionError):
        read_file(path)
    path.unlink()


@pytest.mark.parametrize("cut", [1, 71, 72, 73, 93, 500, 2500])
def test_a_file_that_is_too_short_or_too_long_is_recognised(good: Path, tmp_path: Path, cut: int) -> None:
    data = good.read_bytes()
    assert len(data) > 2500
    for damaged in (data[:-cut], data + b"x" * cut, data[cut:]):
        (tmp_path / "b").write_bytes(damaged)
        with pytest.raises(OptionError):
            read_file(tmp_path / "b")


def test_a_file_without_a_checksum_is_read_and_no_file_is_not(tmp_path: Path) -> None:
    torch.save(CONTENTS, tmp_path / "plain")
    assert read_file(tmp_path / "plain")["step"] == 3
    (tmp_path / "empty").touch()
    with pytest.raises(OptionError, match="cut short"):
        read_file(tmp_path / "empty")
    with pytest.raises(OptionError, match="No such file"):
        read_file(tmp_path / "none")


@pytest.mark.usefixtures("small_disk")
def test_a_full_disk_leaves_the_old_files_and_the_disks_own_words(tmp_path: Path) -> None:
    last, previous = tmp_path / "last", tmp_path / "previous"
    last.write_bytes(b"the last")
    previous.write_bytes(b"the one before")
    with pytest.raises(OSError, match="File too large"):
        write(CONTENTS, last, previous)
    assert (last.read_bytes(), previous.read_bytes()) == (b"the last", b"the one before")
    assert len(list(tmp_path.iterdir())) == 2
    io = DurableCheckpoints()
    io.save_checkpoint(CONTENTS, last, storage_options={"previous": previous})
    assert "File too large" in str(io.error)
    io.save_checkpoint(CONTENTS, tmp_path / "last" / "in a file", storage_options=None)
    assert isinstance(io.error, (FileExistsError, NotADirectoryError))
