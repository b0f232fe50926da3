"""Atomic writes, folder locks and file checksums."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from txl_lightning.errors import UserError

BLOCK_BYTES = 1 << 22
PART = ".part-"  # prefix for temporary files
LOCK = ".lock"
LOG_OF_WANDB = "wandb/*/logs/debug-core.log"  # W&B's link to a log that nobody opens
LOCK_SECONDS = 10.0  # jobs end within a second or two after their runner was killed


def expand(path: str) -> Path:
    """Expand `~`, and `~/.cache` to the folder XDG_CACHE_HOME if that is set."""
    caches = os.environ.get("XDG_CACHE_HOME", "")
    name = path.removeprefix("~/.cache/")
    if os.path.isabs(caches) and name != path:
        return Path(caches, name)
    return Path(path).expanduser()


def not_special(path: str | Path) -> Path:
    """Return the path to a user's file or folder, with `~` expanded.

    Raises:
        OSError: it is a pipe or a device; reading it might never end.
    """
    path = Path(path).expanduser()
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "neither a file nor a folder", str(path))
    return path


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file so that every reader, at any time, finds the old file or the new one, never a part.

    Args:
        path: the file; its folder must exist.
        write: writes the contents to the path it is given, a temporary file in the same folder with the same suffix.

    Raises:
        OSError: the disk is full or the folder is not writable; it names `path` and leaves it unchanged.
    """
    temporary = path.with_name(f"{PART}{uuid.uuid4().hex}-{path.name}")
    try:
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        if error.errno is None:  # NumPy's
            raise OSError(errno.EIO, str(error), str(path)) from error
        if error.filename in (None, str(temporary)):  # a full disk is an error without a name
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Give the block a temporary folder to write into. It becomes `path` as a whole; after an error nothing remains.

    Raises:
        OSError: the disk is full or the folder is not writable; it names `path`.
    """
    temporary = path.with_name(f"{PART}{uuid.uuid4().hex}-{path.name}")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        temporary.rename(path)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def locked(folder: Path, wait: bool = False) -> Iterator[None]:
    """Make a folder and hold its lock until the process ends; a file system without locks is used without one.

    Args:
        folder: no link in it may lead out.
        wait: wait `LOCK_SECONDS` for a process that is about to end.

    Raises:
        UserError: another process holds the lock, or a link leads out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    refuse_links_out(folder)
    deadline = time.monotonic() + LOCK_SECONDS * wait
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    with open(os.open(folder / LOCK, flags, 0o666), "wb") as file:
        with suppress(OSError):  # of a file system without locks
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if time.monotonic() > deadline:
                        held = "another command writes into this folder: choose another one, or wait for its end"
                        raise UserError(f"{folder}: {held}") from error
                    time.sleep(0.1)
        yield


def refuse_links_out(folder: Path) -> None:
    """Refuse a folder with a link that leads out: a command would write or delete there.

    Raises:
        UserError: names the link.
    """
    root = folder.resolve()
    for path in root.rglob("*"):  # it does not follow links
        if path.is_symlink() and not path.match(LOG_OF_WANDB):
            target = path.resolve()
            if not target.is_relative_to(root):
                advice = "no command writes into a folder whose links lead out of it"
                raise UserError(
                    f"{folder / path.relative_to(root)}: is a link to {target}: {advice}"
                )


def sync_folder(path: Path) -> None:
    """Flush a folder's name list to disk, so that a rename survives a power failure."""
    folder = os.open(path, os.O_RDONLY)
    try:
        # Some network file systems cannot; the files themselves are on disk.
        with suppress(OSError):
            os.fsync(folder)
    finally:
        os.close(folder)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, value: Any, allow_nan: bool = True, ensure_ascii: bool = True) -> None:
    """Write a JSON file atomically, indented by 2, with a newline at its end.

    Raises:
        ValueError: a number is not finite and `allow_nan` is false.
    """
    write_text(
        path, json.dumps(value, indent=2, allow_nan=allow_nan, ensure_ascii=ensure_ascii) + "\n"
    )


def file_checksum(path: str | Path) -> str:
    """Return the SHA-256 of a file's contents in hexadecimal."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
