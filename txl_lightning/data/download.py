"""Download corpora from their official addresses into the folder where a user would put them.

The files of a corpus end up complete and checked in its folder, or not at all.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from pathlib import Path
from typing import Any

from txl_lightning.data.reading import CHUNK_BYTES, SPLITS, mapped
from txl_lightning.errors import UserError

SECONDS_TO_ANSWER = 15
WIKITEXT = "Salesforce/wikitext"
LM1B = "1-billion-word-language-modeling-benchmark-r13output.tar.gz"


# Archives, and the names of the needed files in any of their folders.
ADDRESSES = {
    "enwik8": ("http://mattmahoney.net/dc/enwik8.zip", "enwik8"),
    "text8": ("http://mattmahoney.net/dc/text8.zip", "text8"),
    "ptb": ("http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz", "ptb.*.txt"),
    "lm1b": (f"http://www.statmt.org/lm-benchmark/{LM1B}", "news.en*-of-*"),
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


def from_archive(url: str, pattern: str, folder: Path) -> list[Path]:
    """Download an archive, unpack it into a folder and return the files that match the pattern.

    Raises:
        UserError: the download fails, the archive is damaged, or a file is missing or not as expected.
    """
    archive = folder / url.rsplit("/", 1)[-1]
    try:
        with urllib.request.urlopen(url, timeout=SECONDS_TO_ANSWER) as response, archive.open("wb") as file:
            shutil.copyfileobj(response, file, CHUNK_BYTES)
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise UserError(f"{url} cannot be downloaded ({error})") from error
    check(archive)
    safe: dict[str, Any] = {} if archive.suffix == ".zip" else {"filter": "data"}
    try:
        # Python 3.10 and 3.11 have no filter before 3.10.12 and 3.11.4; both tar archives have a checksum.
        shutil.unpack_archive(archive, folder / "unpacked", **(safe if hasattr(tarfile, "data_filter") else {}))
    except (shutil.ReadError, zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError) as error:
        raise UserError(f"{url} gave a damaged archive ({error})") from error
    paths = list((folder / "unpacked").rglob(pattern))
    if not paths:
        raise UserError(f"{archive.name} lacks {pattern}")
    for path in paths:
        check(path)
    return paths


def check(path: Path) -> None:
    """Compare a file with its checksum in `CHECKSUMS`, if there is one.

    Raises:
        UserError: it has another checksum.
    """
    algorithm, _, expected = CHECKSUMS.get(path.name, "").partition(":")
    if expected:
        with mapped(path) as content:
            found = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
        if found != expected:
            raise UserError(f"{path.name} has the {algorithm} {found}, expected is {expected}")


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
        hub.dataset_info(WIKITEXT, timeout=SECONDS_TO_ANSWER)
        splits = datasets.load_dataset(WIKITEXT, f"{corpus}-v1")
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"datasets cannot load {WIKITEXT} ({reason})") from error
    paths = [folder / f"wiki.{split}.tokens" for split in SPLITS]
    for path, hub_split in zip(paths, ("train", "validation", "test"), strict=True):
        with path.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(row["text"].rstrip("\n") + "\n" for row in splits[hub_split])
    return paths
