"""Corpora of the paper, and Wikipedia of 2015: their files, where these are downloaded, and their published sizes."""

from __future__ import annotations

import fnmatch
import hashlib
import http.client
import os
import tarfile
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path, PurePosixPath
from typing import Any

from txl_lightning.config.schemas import DataConfig, Enwik8Data, Lm1bData
from txl_lightning.data import vocabulary
from txl_lightning.data.sources import (
    ALIGNMENT,
    CHUNK_BYTES,
    SPLITS,
    MakeVocabulary,
    Part,
    Parts,
    Source,
    by_split,
    cut_file,
    open_vocabulary,
    register_corpus,
)
from txl_lightning.errors import UserError, first_line, require
from txl_lightning.files import expand

Layout = str | Callable[[Path, str], Parts]  # of a folder at a level; no parts if it is not there
SHARDS_OF_LM1B = "news.en-?????-of-00100"
N_SHARDS_OF_LM1B = 99
HELD_OUT_OF_LM1B = "news.en.heldout-00000-of-00050"
SECONDS_TO_ANSWER = 15
DAMAGED = (
    zipfile.BadZipFile,
    tarfile.TarError,
    NotImplementedError,
    RuntimeError,
    zlib.error,
    EOFError,
)  # an archive
WIKITEXT = "Salesforce/wikitext"
REVISION = "b08601e04326c79dfdd32d625aee71d232d685c3"
LM1B = "1-billion-word-language-modeling-benchmark-r13output.tar.gz"
# Archives, and the names of the needed files in any of their folders.
ADDRESSES = {
    "enwik8": ("https://mattmahoney.net/dc/enwik8.zip", "enwik8"),
    "text8": ("https://mattmahoney.net/dc/text8.zip", "text8"),
    "ptb": ("https://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz", "ptb.*.txt"),
    "lm1b": (f"https://www.statmt.org/lm-benchmark/{LM1B}", "news.en*-of-*"),
}
# Of archives and of files in them, as ALGORITHM:HEXADECIMAL.
CHECKSUMS = {
    "enwik8": "md5:a1fa5ffddb56f4953e226637dabbb36a",
    "text8": "md5:3bea1919949baf155f99411df5fada7e",
    "simple-examples.tgz": "md5:30177ea32e27c525793142b6bf2c8e2d",
    LM1B: "sha256:01ba60381110baf7f189dfd2b8374de371e8c9a340835793f190bdae9e90a34e",
}
CHARACTERS = {"train": 90_000_000, "valid": 5_000_000, "test": 5_000_000}
WIKITEXT_EVALUATION = {"valid": 217_646, "test": 245_569}
# Entries of the vocabulary and tokens of the splits with `<eos>`, which a correct preparation reproduces.
PUBLISHED: dict[str, dict[str, int]] = {
    "enwik8, newlines kept": {"vocabulary": 205, **CHARACTERS},
    "enwik8, newlines dropped": {"vocabulary": 204},  # of the bytes, line breaks are counted too
    "text8": {"vocabulary": 27, **CHARACTERS},
    "wikitext-103": {"vocabulary": 267_735, "train": 103_227_021, **WIKITEXT_EVALUATION},
    "wikitext-2": {"vocabulary": 33_278, "train": 2_088_628, **WIKITEXT_EVALUATION},
    "ptb": {"vocabulary": 10_000, "train": 929_589, "valid": 73_760, "test": 82_430},
    "lm1b": {"vocabulary": 793_471},
    "lm1b, <S> at both ends": {"vocabulary": 793_471},
}


def _one_file(folder: Path, level: str) -> Parts:
    path = folder / folder.name
    cuts = [0, *accumulate(CHARACTERS.values())]
    if not path.is_file():
        return {}
    size = path.stat().st_size
    if size != cuts[-1]:
        raise UserError(f"{path} has {size:,} bytes where {cuts[-1]:,} are published")
    return by_split(Part(path, start, stop) for start, stop in pairwise(cuts))


def _shards(folder: Path, level: str) -> Parts:
    train = [Part(path) for path in sorted(folder.glob(f"**/{SHARDS_OF_LM1B}"))]
    held_out = [Part(path) for path in folder.glob(f"**/{HELD_OUT_OF_LM1B}")]
    if not held_out or len(train) != N_SHARDS_OF_LM1B:
        return {}
    return {"train": train, "valid": held_out, "test": held_out}


def _text_or_xz(folder: Path, level: str) -> Parts:
    for name in ("wikipedia-2015.txt", "wikipedia-2015.txt.xz"):
        if (folder / name).is_file():
            return cut_file(folder / name, alignment=ALIGNMENT[level])
    return {}


# Folders in `data.root`, the layouts of files in them (`{}` is a split), and in words what to put there.
FILES_OF_LM1B = (
    "training-monolingual.tokenized.shuffled/news.en-* and heldout-monolingual.tokenized.shuffled/"
)
FILES_OF_LM1B += "news.en.heldout-00000-of-00050"
WIKITEXT_FILES = (
    ("wiki.{}.tokens", "{}.txt"),
    "wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens",
)
FILES: dict[str, tuple[tuple[str, ...], tuple[Layout, ...], str]] = {
    "enwik8": (("enwik8",), (_one_file, "{}.txt.raw"), "the file enwik8 (100,000,000 bytes)"),
    "text8": (("text8",), (_one_file, "{}.txt.raw"), "the file text8 (100,000,000 bytes)"),
    "wikitext-103": (("wikitext-103",), *WIKITEXT_FILES),
    "wikitext-2": (("wikitext-2",), *WIKITEXT_FILES),
    "ptb": (("penn", "ptb"), ("{}.txt", "ptb.{}.txt"), "train.txt, valid.txt and test.txt"),
    "lm1b": (("one-billion-words", "lm1b"), (_shards, "{}.txt"), FILES_OF_LM1B),
    "wikipedia-2015": (
        ("wikipedia-2015",),
        (_text_or_xz,),
        "wikipedia-2015.txt or wikipedia-2015.txt.xz",
    ),
}


@register_corpus("enwik8", "byte", options=Enwik8Data)
def enwik8(config: Enwik8Data) -> Source:
    """First 10^8 bytes of Wikipedia of 2006: 90M, 5M and 5M bytes.

    `data.newlines=dropped` reads it as the paper did: without line breaks, 204 symbols. `kept` keeps all bytes, 205
    symbols. The corpus' name says which.
    """
    ways = {"dropped": vocabulary.bytes_without_newlines, "kept": vocabulary.bytes_with_newlines}
    require(
        config.newlines in ways,
        "data.newlines",
        config.newlines,
        "must be dropped (as in the paper) or kept",
    )
    return _source(config, ways[config.newlines], f", newlines {config.newlines}")


@register_corpus("text8", "char")
def text8(config: DataConfig) -> Source:
    """First 10^8 characters of Wikipedia of 2006 without markup, in a to z and spaces: 90M, 5M and 5M."""
    return _source(config, vocabulary.characters)


@register_corpus("wikitext-103", "word")
@register_corpus("wikitext-2", "word")
def wikitext(config: DataConfig) -> Source:
    """WikiText-103 and WikiText-2: words and `<eos>`, the vocabulary from the training split."""
    return _source(config, vocabulary.words, cutoffs=(20_000, 40_000, 200_000))


@register_corpus("ptb", "word")
def ptb(config: DataConfig) -> Source:
    """Penn Treebank as Mikolov prepared it: 10,000 words with `<eos>`."""
    return _source(config, vocabulary.words)


@register_corpus("lm1b", "word", options=Lm1bData)
def lm1b(config: Lm1bData) -> Source:
    """One Billion Word benchmark: shuffled sentences, each begins with `<S>`; validation and test are the same text.

    The vocabulary is `1b_word_vocab.txt` if that file is present, otherwise the words that occur at least three times
    in training (the rule that made that file). `data.sentence_marks=both` has `<S>` at the ends of sentences too, as
    the TensorFlow code: the end of a sentence and the start of the next one are then two tokens.
    """
    marks = config.sentence_marks
    allowed = "must be start or both (as in the TensorFlow code)"
    require(marks in ("start", "both"), "data.sentence_marks", marks, allowed)
    way = ", <S> at both ends" if marks == "both" else ""
    source = _source(config, vocabulary.words_of_sentences, way, cutoffs=(60_000, 100_000, 640_000))
    listed = _folder(config) / "1b_word_vocab.txt"
    if listed.is_file():
        return replace(source, vocabulary=vocabulary.words_of_list, listed=(Part(listed),))
    return source


@register_corpus("wikipedia-2015", *vocabulary.LEVELS)
def wikipedia_2015(config: DataConfig) -> Source:
    """Plain text of Wikipedia articles of 2015 (`<doc …>` lines between them), of about enwik8's size: 90/5/5 %."""
    return _source(config, open_vocabulary(config))


def _folder(config: DataConfig) -> Path:
    """Return the folder of a corpus: the first of its names that exists, otherwise the last, for a download.

    They are folders in `data.root`, or else in the folder that the variable TXL_DATA names, or else in a folder for
    downloads in `data.cache_dir`.

    Raises:
        OptionError: `data.root` or TXL_DATA is not a folder.
    """
    option = "data.root" if config.root else "TXL_DATA"
    root_of_user = config.root or os.environ.get("TXL_DATA")
    root = expand(root_of_user or f"{config.cache_dir}/downloads")
    require(not root_of_user or root.is_dir(), option, root_of_user, "must be a folder")
    names = FILES[config.name][0]
    for name in names:
        if (root / name).is_dir():
            return root / name
    return root / names[-1]


def _source(
    config: DataConfig, make: MakeVocabulary, way: str = "", cutoffs: tuple[int, ...] = ()
) -> Source:
    """Return a corpus by the first layout of `FILES` that is complete; it is downloaded if none is.

    Args:
        config: group `data`.
        make: makes the vocabulary.
        way: how the corpus is read, for its name.
        cutoffs: see `Source`.

    Raises:
        UserError: the corpus cannot be downloaded.
    """
    folder = _folder(config)
    parts = _find_parts(config, folder)
    if not parts:
        fetch(config.name, folder, FILES[config.name][2])
        parts = _find_parts(config, folder)
    if not parts:
        raise UserError(f"data={config.name}: the download in {folder} is not complete")
    name = f"{config.name}{way}"
    return Source(name, parts, make, published=PUBLISHED.get(name, {}), cutoffs=cutoffs)


def _find_parts(config: DataConfig, folder: Path) -> Parts:
    for layout in FILES[config.name][1]:
        if not isinstance(layout, str):
            parts = layout(folder, config.level)
        else:
            paths = [folder / layout.format(split) for split in SPLITS]
            parts = by_split(map(Part, paths)) if all(path.is_file() for path in paths) else {}
        if parts:
            return parts
    return {}


def fetch(corpus: str, folder: Path, needed: str) -> None:
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
        where = f"put {needed} there (the folder {folder.parent} is data.root or TXL_DATA)"
        raise UserError(f"data={corpus}: not in {folder}, and {error}; {where}") from error


def from_archive(url: str, pattern: str, folder: Path) -> list[Path]:
    """Download an archive, unpack the files that match the pattern into a folder, and return them.

    Checksums are compared before anything is opened or returned. Nothing else is unpacked, and only the name of a file
    in the archive is used, not its place.

    Raises:
        UserError: the download fails, the archive is damaged, or a file is missing or not as expected.
    """
    archive = folder / url.rsplit("/", 1)[-1]
    paths = []
    try:
        with urllib.request.urlopen(url, timeout=SECONDS_TO_ANSWER) as response:
            _write_checked(response, archive)
        for place, content in _members(archive):
            name = PurePosixPath(place).name
            if fnmatch.fnmatch(name, pattern):
                paths.append(folder / "unpacked" / name)
                _write_checked(content, paths[-1])
    except (OSError, http.client.HTTPException, *DAMAGED) as error:
        raise UserError(f"{url} cannot be downloaded and unpacked ({error})") from error
    if not paths:
        raise UserError(f"{archive.name} lacks {pattern}")
    return paths


def _members(archive: Path) -> Iterator[tuple[str, Any]]:
    """Yield the name and the open content of every file in a zip or tar archive."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as zipped:
            for name in zipped.namelist():
                yield name, zipped.open(name)
        return
    with tarfile.open(archive) as tarred:
        for member in tarred:
            if member.isfile():
                yield member.name, tarred.extractfile(member)


def _write_checked(source: Any, path: Path) -> None:
    """Write what an open file holds, and compare it with its checksum in `CHECKSUMS`, if there is one.

    Raises:
        UserError: it has another checksum.
    """
    algorithm, _, expected = CHECKSUMS.get(path.name, "md5:").partition(":")
    digest = hashlib.new(algorithm, usedforsecurity=False)
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
            file.write(chunk)
    if expected not in ("", digest.hexdigest()):
        raise UserError(
            f"{path.name} has the {algorithm} {digest.hexdigest()}, expected is {expected}"
        )


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
        raise UserError(f"datasets cannot load {WIKITEXT} ({first_line(error)})") from error
    paths = []
    for split, split_of_hub in zip(SPLITS, ("train", "validation", "test"), strict=True):
        path = folder / f"wiki.{split}.tokens"
        with path.open("w", encoding="utf-8", newline="\n") as file:
            for row in splits[split_of_hub]:
                file.write(row["text"].rstrip("\n") + "\n")
        paths.append(path)
    return paths
