"""Download corpora from their official addresses into the folder where a user would put them.

Every file ends up complete and with the expected checksum, or not at all.
"""

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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

from txl_lightning.data.reading import CHUNK_BYTES
from txl_lightning.data.sources import SPLITS
from txl_lightning.errors import UserError
from txl_lightning.files import write_atomically

SECONDS_TO_ANSWER = 15
TRAIN_SHARDS_OF_LM1B = 99

ADDRESSES = {
    "enwik8": "http://mattmahoney.net/dc/enwik8.zip",
    "text8": "http://mattmahoney.net/dc/text8.zip",
    "ptb": "http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",
    "lm1b": "http://www.statmt.org/lm-benchmark/1-billion-word-language-modeling-benchmark-r13output.tar.gz",
}
# Checksums as ALGORITHM:HEXADECIMAL, of archives and of the files in them.
ARCHIVES = {
    "ptb": "md5:30177ea32e27c525793142b6bf2c8e2d",
    "lm1b": "sha256:01ba60381110baf7f189dfd2b8374de371e8c9a340835793f190bdae9e90a34e",
}
CONTENTS = {
    "enwik8": "md5:a1fa5ffddb56f4953e226637dabbb36a",
    "text8": "md5:3bea1919949baf155f99411df5fada7e",
}
FILES = {
    "enwik8": "the file enwik8 (100,000,000 bytes)",
    "text8": "the file text8 (100,000,000 bytes)",
    "wikitext-103": "wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens",
    "wikitext-2": "wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens",
    "ptb": "train.txt, valid.txt and test.txt (ptb.char.train.txt … for characters)",
    "lm1b": "training-monolingual.tokenized.shuffled/news.en-* and heldout-monolingual.tokenized.shuffled/"
    "news.en.heldout-00000-of-00050",
    "wikipedia-2015": "wikipedia-2015.txt or wikipedia-2015.txt.xz",
}


def fetch(corpus: str, folder: Path) -> None:
    """Download a corpus into its folder.

    Raises:
        UserError: it cannot be downloaded; the message says why, and which files to put where.
    """
    try:
        if corpus in ADDRESSES:
            from_archive(corpus, folder, ADDRESSES[corpus])
        elif corpus.startswith("wikitext"):
            from_datasets(corpus, folder)
        else:
            raise UserError("there is no official address to download it from")
    except UserError as error:
        raise UserError(
            f"data={corpus}: not in {folder}, and {error}; put {FILES[corpus]} there "
            f"(the folder {folder.parent} is data.root or TXL_DATA)"
        ) from error


def from_archive(corpus: str, folder: Path, url: str) -> None:
    """Download an archive, unpack the corpus' files from it and delete it.

    Raises:
        UserError: see `download` and `unpack`.
    """
    with _all_or_nothing(folder) as (scratch, new):
        archive = scratch / url.rsplit("/", 1)[-1]
        download(url, archive, ARCHIVES.get(corpus, ""))
        unpack(archive, {member: new / name for member, name in _members_of(corpus).items()}, CONTENTS)


def _members_of(corpus: str) -> dict[str, str]:
    """Return, for each needed member of an archive, its name in the corpus' folder."""
    if corpus in CONTENTS:
        return {corpus: corpus}
    if corpus == "ptb":
        characters = [f"ptb.char.{split}.txt" for split in SPLITS]
        return {f"ptb.{split}.txt": f"{split}.txt" for split in SPLITS} | {name: name for name in characters}
    train, held_out = "training-monolingual.tokenized.shuffled", "heldout-monolingual.tokenized.shuffled"
    shards = [f"{train}/news.en-{i:05d}-of-00100" for i in range(1, TRAIN_SHARDS_OF_LM1B + 1)]
    return {name: name for name in [*shards, f"{held_out}/news.en.heldout-00000-of-00050"]}


def from_datasets(corpus: str, folder: Path, load_dataset: Callable[..., Any] | None = None) -> None:
    """Download WikiText through `datasets`; every row is a line.

    Args:
        corpus: wikitext-2 or wikitext-103.
        folder: folder of the corpus.
        load_dataset: replaces `datasets.load_dataset` in tests.

    Raises:
        UserError: the hub cannot be reached, or cannot deliver the data.
    """
    if load_dataset is None:
        # Check first, because `load_dataset` retries for half a minute without a network.
        require_answer(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
        import datasets  # takes a second, and few runs need it

        load_dataset = datasets.load_dataset
    try:
        splits = load_dataset("Salesforce/wikitext", f"{corpus}-v1")
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"datasets cannot load Salesforce/wikitext ({reason})") from error
    with _all_or_nothing(folder) as (_, new):
        for split, hub_split in {"train": "train", "valid": "validation", "test": "test"}.items():
            batches = splits[hub_split].iter(batch_size=10_000)
            lines = (b"".join(line.rstrip("\n").encode() + b"\n" for line in batch["text"]) for batch in batches)
            write(new / f"wiki.{split}.tokens", lines)


@contextmanager
def _all_or_nothing(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Yield a scratch folder and a folder `new`; move the files of `new` to `folder` unless an error occurred."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as name:
            scratch, new = Path(name), Path(name) / "new"
            yield scratch, new
            for path in sorted(new.rglob("*")):
                if path.is_file():
                    target = folder / path.relative_to(new)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    path.replace(target)
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror or error})") from error


def write(target: Path, chunks: Iterable[bytes], expected: str = "", title: str = "") -> None:
    """Write a file atomically from chunks, and check it before it gets its name.

    Args:
        target: path of the file; its folder is made if needed.
        chunks: the contents.
        expected: checksum as ALGORITHM:HEXADECIMAL; empty for no check.
        title: name of the file in errors; by default its own.

    Raises:
        UserError: the file has another checksum, or cannot be written; `target` is unchanged.
    """
    algorithm, _, wanted = expected.partition(":")

    def write_and_check(temporary: Path) -> None:
        digest = hashlib.new(algorithm or "sha256", usedforsecurity=False)
        with temporary.open("wb") as file:
            for chunk in chunks:
                file.write(chunk)
                digest.update(chunk)
        if expected and digest.hexdigest() != wanted:
            raise UserError(f"{title or target.name} has the {algorithm} {digest.hexdigest()}, expected is {wanted}")

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, write_and_check)
    except OSError as error:
        raise UserError(f"{target} cannot be written ({error.strerror or error})") from error


def download(url: str, target: Path, expected: str = "") -> None:
    """Download a file.

    Raises:
        UserError: the server cannot be reached, the download stops early or is an HTML page, the file has another
            checksum than expected, or the disk is full. `target` is unchanged.
    """
    write(target, _chunks_of(url), expected, title=url)


def _chunks_of(url: str) -> Iterator[bytes]:
    try:
        with urllib.request.urlopen(url, timeout=SECONDS_TO_ANSWER) as response:
            promised, received = response.headers.get("Content-Length"), 0
            html = response.headers.get_content_type() == "text/html"
            while chunk := response.read(CHUNK_BYTES):
                if not received and (html or chunk[:512].lstrip().lower().startswith((b"<!doctype html", b"<html"))):
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


def unpack(archive: Path, members: Mapping[str, Path], checksums: Mapping[str, str]) -> None:
    """Unpack some files of a zip or tar archive.

    Args:
        archive: path of the archive.
        members: target by name in the archive; leading folders may be left out.
        checksums: expected checksums of members.

    Raises:
        UserError: the archive is damaged, or a member is missing or not as expected.
    """
    missing = set(members)
    try:
        for name, file in _members(archive):
            for end in sorted(missing):
                if name == end or name.endswith("/" + end):
                    chunks = iter(partial(file.read, CHUNK_BYTES), b"")
                    write(members[end], chunks, checksums.get(end, ""), title=f"{end} in {archive.name}")
                    missing.discard(end)
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError) as error:
        raise UserError(f"{archive.name} is a damaged archive ({error})") from error
    if missing:
        raise UserError(f"{archive.name} lacks {', '.join(sorted(missing))}")


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield names and open files of an archive; read each file before asking for the next."""
    if archive.name.endswith(".zip"):
        with zipfile.ZipFile(archive) as packed:
            for name in packed.namelist():
                with packed.open(name) as file:
                    yield name, file
    else:
        with tarfile.open(archive) as tar:
            for member in tar:
                opened = tar.extractfile(member) if member.isfile() else None
                if opened is not None:
                    with opened:
                        yield member.name, opened
