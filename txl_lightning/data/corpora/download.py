"""Files from elsewhere: complete and with the right checksum under their name, or not there at all."""

from __future__ import annotations

import hashlib
import http.client
import os
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from txl_lightning.data.reading import CHUNK_BYTES
from txl_lightning.errors import UserError

SECONDS_TO_ANSWER = 15


@dataclass(frozen=True)
class Expected:
    """What a file must be.

    Args:
        size: in bytes.
        md5: hexadecimal.
        sha256: hexadecimal.
    """

    size: int | None = None
    md5: str | None = None
    sha256: str | None = None


@contextmanager
def atomic(target: Path) -> Iterator[IO[bytes]]:
    """A file to write that gets its name when the block ends well, and is removed when it does not.

    Raises:
        UserError: it cannot be written (permissions, full disk).
    """
    temporary: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        raise UserError(f"{target} cannot be written ({error.strerror or error})") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def write(target: Path, chunks: Iterable[bytes], expected: Expected = Expected(), what: str = "") -> None:
    """Write `target` out of chunks; it is there afterwards only if it is what was expected.

    Raises:
        UserError: naming the size or checksum found and expected, or what the disk said.
    """
    what = what or target.name
    hashes = {"md5": hashlib.md5(usedforsecurity=False), "sha256": hashlib.sha256()}
    size = 0
    with atomic(target) as file:
        for chunk in chunks:
            file.write(chunk)
            size += len(chunk)
            for name in hashes:
                if getattr(expected, name):
                    hashes[name].update(chunk)
        if expected.size not in (None, size):
            raise UserError(f"{what} has {size:,} bytes where {expected.size:,} are expected")
        for name, digest in hashes.items():
            wanted = getattr(expected, name)
            if wanted and digest.hexdigest() != wanted:
                raise UserError(f"{what} has the {name} {digest.hexdigest()}, expected is {wanted}")


def download(url: str, target: Path, expected: Expected = Expected()) -> None:
    """Fetch a file.

    Raises:
        UserError: no network, a download that stops early, an HTML page instead of the file, another size or
            checksum than expected, a disk that is full. `target` is then as it was before.
    """
    write(target, _chunks_of(url), expected, what=url)


def _chunks_of(url: str) -> Iterator[bytes]:
    try:
        with urllib.request.urlopen(url, timeout=SECONDS_TO_ANSWER) as response:
            promised, received = response.headers.get("Content-Length"), 0
            while chunk := response.read(CHUNK_BYTES):
                if not received and _is_html(response.headers.get_content_type(), chunk):
                    raise UserError(f"{url} gave an HTML page instead of the file")
                received += len(chunk)
                yield chunk
    except urllib.error.HTTPError as error:
        raise UserError(f"{url} answered {error.code} {error.reason}") from error
    except http.client.IncompleteRead as error:
        raise UserError(f"{url} stopped early (truncated download)") from error
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise UserError(f"{url} cannot be reached ({getattr(error, 'reason', error)})") from error
    if promised is not None and received != int(promised):
        raise UserError(f"{url} stopped after {received:,} of {int(promised):,} bytes (truncated download)")


def require_answer(url: str) -> None:
    """Find out within seconds whether a server can be reached; what it answers does not matter.

    Raises:
        UserError: it cannot.
    """
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=SECONDS_TO_ANSWER).close()
    except urllib.error.HTTPError as error:
        error.close()
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise UserError(f"{url} cannot be reached ({getattr(error, 'reason', error)})") from error


def _is_html(content_type: str, start: bytes) -> bool:
    return content_type == "text/html" or start[:512].lstrip().lower().startswith((b"<!doctype html", b"<html"))


def unpack(archive: Path, members: Mapping[str, tuple[Path, Expected]]) -> None:
    """Files of a zip or tar archive under names of their own.

    Args:
        archive: the archive.
        members: for the end of every member's name: where it goes, and what it must be.

    Raises:
        UserError: the archive is damaged, a member is missing or not what was expected.
    """
    missing = set(members)
    try:
        for name, chunks in _members(archive):
            for end in sorted(missing):
                if name == end or name.endswith("/" + end):
                    target, expected = members[end]
                    write(target, chunks, expected, what=f"{end} in {archive.name}")
                    missing.discard(end)
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError) as error:
        raise UserError(f"{archive.name} is a damaged archive ({error})") from error
    if missing:
        raise UserError(f"{archive.name} lacks {', '.join(sorted(missing))}")


def _members(archive: Path) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Names and contents of an archive's files; a content is to be read before the next name is asked for."""
    if archive.name.endswith(".zip"):
        with zipfile.ZipFile(archive) as packed:
            for name in packed.namelist():
                with packed.open(name) as file:
                    yield name, _chunks(file)
    else:
        with tarfile.open(archive) as tar:
            for member in tar:
                opened = tar.extractfile(member) if member.isfile() else None
                if opened is not None:
                    with opened:
                        yield member.name, _chunks(opened)


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    return iter(lambda: file.read(CHUNK_BYTES), b"")
