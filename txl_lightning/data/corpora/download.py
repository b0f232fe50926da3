"""Download and unpack files: each ends up complete and with the expected checksum, or not at all."""

from __future__ import annotations

import hashlib
import http.client
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from txl_lightning.data.reading import CHUNK_BYTES
from txl_lightning.errors import UserError
from txl_lightning.files import write_atomically

SECONDS_TO_ANSWER = 15


@dataclass(frozen=True)
class Expected:
    """Expected size and checksums of a file; None is not checked.

    Args:
        size: in bytes.
        md5: in hexadecimal.
        sha256: in hexadecimal.
    """

    size: int | None = None
    md5: str | None = None
    sha256: str | None = None


def write(target: Path, chunks: Iterable[bytes], expected: Expected = Expected(), title: str = "") -> None:
    """Write a file atomically from chunks, and check it before it gets its name.

    Args:
        target: path of the file; its folder is made if needed.
        chunks: the contents.
        expected: what to check.
        title: what errors call the file; by default its name.

    Raises:
        UserError: the file has another size or checksum, or cannot be written; `target` is unchanged.
    """

    def write_and_check(temporary: Path) -> None:
        with temporary.open("wb") as file:
            _check(_copy(chunks, file), expected, title or target.name)

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, write_and_check)
    except OSError as error:
        raise UserError(f"{target} cannot be written ({error.strerror or error})") from error


def _copy(chunks: Iterable[bytes], file: IO[bytes]) -> Expected:
    """Write chunks to a file and return their total size and checksums."""
    size, md5, sha256 = 0, hashlib.md5(usedforsecurity=False), hashlib.sha256()
    for chunk in chunks:
        file.write(chunk)
        size += len(chunk)
        md5.update(chunk)
        sha256.update(chunk)
    return Expected(size, md5.hexdigest(), sha256.hexdigest())


def _check(found: Expected, expected: Expected, title: str) -> None:
    if expected.size not in (None, found.size):
        raise UserError(f"{title} has {found.size:,} bytes where {expected.size:,} are expected")
    for name in ("md5", "sha256"):
        if getattr(expected, name) not in (None, getattr(found, name)):
            raise UserError(f"{title} has the {name} {getattr(found, name)}, expected is {getattr(expected, name)}")


def download(url: str, target: Path, expected: Expected = Expected()) -> None:
    """Download a file.

    Raises:
        UserError: the server cannot be reached, the download stops early or is an HTML page, the file has another
            size or checksum than expected, or the disk is full. `target` is unchanged.
    """
    write(target, _chunks_of(url), expected, title=url)


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
    """Check within seconds that a server can be reached, whatever it answers.

    Raises:
        UserError: it cannot be reached.
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
    """Unpack some files of a zip or tar archive.

    Args:
        archive: path of the archive.
        members: target and expected contents by name in the archive; leading folders may be left out.

    Raises:
        UserError: the archive is damaged, or a member is missing or not as expected.
    """
    missing = set(members)
    try:
        for name, chunks in _members(archive):
            for end in sorted(missing):
                if name == end or name.endswith("/" + end):
                    target, expected = members[end]
                    write(target, chunks, expected, title=f"{end} in {archive.name}")
                    missing.discard(end)
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError) as error:
        raise UserError(f"{archive.name} is a damaged archive ({error})") from error
    if missing:
        raise UserError(f"{archive.name} lacks {', '.join(sorted(missing))}")


def _members(archive: Path) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield names and contents of an archive's files; read each content before asking for the next file."""
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
