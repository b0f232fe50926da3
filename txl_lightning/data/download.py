"""Download corpora from their official addresses into the folder where a user would put them.

The files of a corpus end up complete and checked in its folder, or not at all.
"""

from __future__ import annotations

import fnmatch
import hashlib
import http.client
import os
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from txl_lightning.data.reading import CHUNK_BYTES, SPLITS
from txl_lightning.errors import UserError

SECONDS_TO_ANSWER = 15
WIKITEXT, REVISION = "Salesforce/wikitext", "b08601e04326c79dfdd32d625aee71d232d685c3"
LM1B = "1-billion-word-language-modeling-benchmark-r13output.tar.gz"


# Archives, the names of the needed files in any of their folders, and the most bytes of these files together.
ADDRESSES = {
    "enwik8": ("https://mattmahoney.net/dc/enwik8.zip", "enwik8", 100_000_000),
    "text8": ("https://mattmahoney.net/dc/text8.zip", "text8", 100_000_000),
    "ptb": ("https://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz", "ptb.*.txt", 100_000_000),
    "lm1b": (f"https://www.statmt.org/lm-benchmark/{LM1B}", "news.en*-of-*", 6_000_000_000),
}
# Of archives and of files in them, as ALGORITHM:HEXADECIMAL.
CHECKSUMS = {
    "enwik8": "md5:a1fa5ffddb56f4953e226637dabbb36a",
    "text8": "md5:3bea1919949baf155f99411df5fada7e",
    "simple-examples.tgz": "md5:30177ea32e27c525793142b6bf2c8e2d",
    LM1B: "sha256:01ba60381110baf7f189dfd2b8374de371e8c9a340835793f190bdae9e90a34e",
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
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
            if corpus in ADDRESSES:
                paths = from_archive(*ADDRESSES[corpus], Path(scratch))
            elif corpus.startswith("wikitext"):
                paths = from_datasets(corpus, Path(scratch))
            else:
                raise UserError("there is no official address to download it from")
            folder.mkdir(exist_ok=True)
            for path in paths:
                path.replace(folder / path.name)
    except (UserError, OSError) as error:
        raise UserError(
            f"data={corpus}: not in {folder}, and {error}; put {FILES[corpus]} there "
            f"(the folder {folder.parent} is data.root or TXL_DATA)"
        ) from error


def from_archive(url: str, pattern: str, most_bytes: int, folder: Path) -> list[Path]:
    """Download an archive, unpack the files that match the pattern into a folder, and return them.

    Neither the archive nor its files may have more than `most_bytes`; the archive's checksum is compared before it is
    opened. Nothing else is unpacked, and of a file's place in the archive only its name is used.

    Raises:
        UserError: the download fails, the archive is damaged or too large, or a file is missing or not as expected.
    """
    archive = folder / url.rsplit("/", 1)[-1]
    try:
        with urllib.request.urlopen(url, timeout=SECONDS_TO_ANSWER) as response:
            _copy(response, archive, most_bytes)
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise UserError(f"{url} cannot be downloaded ({error})") from error
    check(archive)
    paths: list[Path] = []
    try:
        for name, content in _members(archive):
            if fnmatch.fnmatch(name, pattern):
                most_bytes -= _copy(content, folder / "unpacked" / name, most_bytes)
                paths.append(folder / "unpacked" / name)
    except (zipfile.BadZipFile, tarfile.TarError, NotImplementedError, RuntimeError, zlib.error, EOFError) as error:
        raise UserError(f"{url} gave a damaged archive ({error})") from error
    if not paths:
        raise UserError(f"{archive.name} lacks {pattern}")
    for path in paths:
        check(path)
    return paths


def _members(archive: Path) -> Iterator[tuple[str, Any]]:
    """Yield the name and the open content of every file in a zip or tar archive."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as opened:
            for info in opened.infolist():
                with opened.open(info) as content:
                    yield PurePosixPath(info.filename).name, content
        return
    with tarfile.open(archive) as unpacked:
        for member in unpacked:
            if member.isfile():
                yield PurePosixPath(member.name).name, unpacked.extractfile(member)


def _copy(source: Any, path: Path, most_bytes: int) -> int:
    """Write what an open file holds, and return its bytes.

    Raises:
        UserError: there are more than `most_bytes`.
    """
    path.parent.mkdir(exist_ok=True)
    n_bytes = 0
    with path.open("wb") as file:
        while chunk := source.read(CHUNK_BYTES):
            n_bytes += file.write(chunk)
            if n_bytes > most_bytes:
                raise UserError(f"{path.name} is larger than expected")
    return n_bytes


def check(path: Path) -> None:
    """Compare a file with its checksum in `CHECKSUMS`, if there is one.

    Raises:
        UserError: it has another checksum.
    """
    algorithm, _, expected = CHECKSUMS.get(path.name, "").partition(":")
    if expected:
        digest = hashlib.new(algorithm, usedforsecurity=False)
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
        if digest.hexdigest() != expected:
            raise UserError(f"{path.name} has the {algorithm} {digest.hexdigest()}, expected is {expected}")


def from_datasets(corpus: str, folder: Path) -> list[Path]:
    """Download WikiText through `datasets` and return its files; every row is a line.

    Raises:
        UserError: the hub cannot be reached, or cannot deliver the data.
    """
    import datasets  # takes a second, and few runs need it
    import huggingface_hub

    try:
        # Asked first, because `load_dataset` retries for half a minute without a network.
        hub = huggingface_hub.HfApi(os.environ.get("HF_ENDPOINT"))
        hub.dataset_info(WIKITEXT, revision=REVISION, timeout=SECONDS_TO_ANSWER)
        splits = datasets.load_dataset(WIKITEXT, f"{corpus}-v1", revision=REVISION)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"datasets cannot load {WIKITEXT} ({reason})") from error
    paths = [folder / f"wiki.{split}.tokens" for split in SPLITS]
    for path, hub_split in zip(paths, ("train", "validation", "test"), strict=True):
        with path.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(row["text"].rstrip("\n") + "\n" for row in splits[hub_split])
    return paths
