"""Atomic writes, locks and checksums of files, and the folders of caches."""

import errno
import hashlib
import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.fixtures import Patch
from txl_lightning import files
from txl_lightning.errors import UserError


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")

    def interrupted(temporary: Path) -> None:
        temporary.write_text("ne")
        assert path.read_text() == "old"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.write_atomically(path, interrupted)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_a_file_that_did_not_reach_the_disk_leaves_the_old_one(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    monkeypatch.setattr(files.os, "fsync", Mock(side_effect=OSError("No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        files.write_text(path, "new")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("size", [0, 8, 100])
def test_checksums_are_sha_256_across_blocks(tmp_path: Path, monkeypatch: Patch, size: int) -> None:
    monkeypatch.setattr(files, "BLOCK_BYTES", 8)
    content = os.urandom(size)
    path = tmp_path / "a"
    path.write_bytes(content)
    assert files.file_checksum(path) == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    ("path", "xdg_cache_home", "expanded"),
    [
        ("~/.cache/txl_lightning/losses", "/var/caches", "/var/caches/txl_lightning/losses"),
        ("~/.cache/txl_lightning", None, "/home/me/.cache/txl_lightning"),
        # The standard forbids a relative folder.
        ("~/.cache/txl_lightning", "relative", "/home/me/.cache/txl_lightning"),
        ("~/data", "/var/caches", "/home/me/data"),
        ("data", "/var/caches", "data"),
    ],
)
def test_caches_are_where_the_variables_say(
    monkeypatch: Patch, path: str, xdg_cache_home: str | None, expanded: str
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if xdg_cache_home is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", xdg_cache_home)
    assert str(files.expand(path)) == expanded


@pytest.mark.parametrize("wait", [False, True])
def test_one_process_at_a_time_writes_into_a_folder(
    tmp_path: Path, monkeypatch: Patch, wait: bool
) -> None:
    monkeypatch.setattr(files, "LOCK_SECONDS", 0.2)
    with files.locked(tmp_path):
        second = files.locked(tmp_path, wait)
        with pytest.raises(UserError, match="another command writes into"):
            second.__enter__()


def test_a_file_system_without_locks_is_used_without_one(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    unsupported = Mock(side_effect=OSError(errno.ENOSYS, "no locks"))
    monkeypatch.setattr(files.fcntl, "flock", unsupported)
    with files.locked(tmp_path), files.locked(tmp_path):
        pass


def test_a_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".lock").symlink_to("file")
    lock = files.locked(tmp_path)
    with pytest.raises(OSError, match="symbolic links"):
        lock.__enter__()
    assert not (tmp_path / "file").exists()
