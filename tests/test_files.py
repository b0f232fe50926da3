"""Atomic writes, locks, checksums, and where caches go: XDG_CACHE_HOME, HOME, or a folder for the time of a command."""

import errno
import hashlib
import math
import os
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.fixtures import Patch
from txl_lightning import files
from txl_lightning.errors import UserError
from txl_lightning.files import checksum, expand, file_checksum, locked, write_atomically, write_json, write_text


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_text_and_json_are_written_whole(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "ä\n")
    assert (tmp_path / "a.txt").read_bytes() == "ä\n".encode()
    for options, written in (({}, "\\u00e4"), ({"ensure_ascii": False}, "ä")):
        write_json(tmp_path / "a.json", {"ä": 1}, **options)
        assert (tmp_path / "a.json").read_text("utf-8") == f'{{\n  "{written}": 1\n}}\n'
    with pytest.raises(ValueError, match="Out of range float"):
        write_json(tmp_path / "a.json", math.nan, allow_nan=False)
    assert names(tmp_path) == ["a.json", "a.txt"]


def test_the_old_file_stays_until_the_new_one_is_complete_and_on_disk(tmp_path: Path, monkeypatch: Patch) -> None:
    path = tmp_path / "a"
    path.write_text("old")

    def interrupted(temporary: Path) -> None:
        temporary.write_text("ne")
        assert path.read_text() == "old"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, interrupted)
    monkeypatch.setattr(files.os, "fsync", Mock(side_effect=OSError("No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        write_text(path, "new")
    assert (path.read_text(), names(tmp_path)) == ("old", ["a"])


@pytest.mark.parametrize("size", [0, 8, 100])
def test_checksums_are_sha_256_whatever_the_block(tmp_path: Path, monkeypatch: Patch, size: int) -> None:
    monkeypatch.setattr(files, "BLOCK_BYTES", 8)
    content = os.urandom(size)
    (tmp_path / "a").write_bytes(content)
    assert file_checksum(tmp_path / "a") == hashlib.sha256(content).hexdigest()
    for n_bytes in (0, 1, 8, 17, size):
        with (tmp_path / "a").open("rb") as file:
            assert checksum(file, n_bytes) == hashlib.sha256(content[:n_bytes]).hexdigest()


@pytest.mark.parametrize(
    ("given", "caches", "expanded"),
    [
        ("~/.cache/txl_lightning/losses", "/var/caches", "/var/caches/txl_lightning/losses"),
        ("~/.cache/txl_lightning", None, "/home/me/.cache/txl_lightning"),
        ("~/.cache/txl_lightning", "relative", "/home/me/.cache/txl_lightning"),  # which the standard forbids
        ("~/data", "/var/caches", "/home/me/data"),
        ("data", "/var/caches", "data"),
    ],
)
def test_caches_are_where_the_variables_say(monkeypatch: Patch, given: str, caches: str | None, expanded: str) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if caches is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", caches)
    assert str(expand(given)) == expanded


def test_one_process_at_a_time_writes_into_a_folder(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(files, "LOCK_SECONDS", 0.2)
    for wait in (False, True):
        with locked(tmp_path), pytest.raises(UserError, match="another command writes into"), locked(tmp_path, wait):
            pass


def test_a_file_system_without_locks_is_used_without_one(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(files.fcntl, "flock", Mock(side_effect=OSError(errno.ENOSYS, "no locks")))
    with locked(tmp_path), locked(tmp_path):
        pass


def test_links_inside_a_folder_stay_and_its_lock_follows_none(tmp_path: Path) -> None:
    for name, refused in (("latest", nullcontext()), (".lock", pytest.raises(OSError, match="symbolic links"))):
        (tmp_path / ".lock").unlink(missing_ok=True)
        (tmp_path / name).symlink_to("file")
        with refused, locked(tmp_path):
            pass
    assert not (tmp_path / "file").exists()
