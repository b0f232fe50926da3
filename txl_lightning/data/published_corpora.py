"""The paper's corpora, and Wikipedia from 2015: their files, download addresses, and published sizes."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import urllib.request
from pathlib import Path

from txl_lightning.config.schemas import DataConfig, Enwik8Data, Lm1bData
from txl_lightning.data import vocabulary
from txl_lightning.data.cache import prepared_folder
from txl_lightning.data.sources import (
    CHUNK,
    SPLITS,
    MakeVocabulary,
    Part,
    Parts,
    Source,
    cut_text,
    open_vocabulary,
    register_corpus,
    text_file,
)
from txl_lightning.errors import UserError, first_line, require
from txl_lightning.files import expand

SECONDS_TO_ANSWER = 15
N_SHARDS_OF_LM1B = 99
WIKITEXT = "Salesforce/wikitext"
SPLITS_OF_HUB = ("train", "validation", "test")
REVISION = "b08601e04326c79dfdd32d625aee71d232d685c3"
LM1B = "1-billion-word-language-modeling-benchmark-r13output.tar.gz"
# Archives, and the files needed from any folder in them.
ADDRESSES = {
    "enwik8": ("https://mattmahoney.net/dc/enwik8.zip", "enwik8"),
    "text8": ("https://mattmahoney.net/dc/text8.zip", "text8"),
    "ptb": ("https://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz", "ptb.*.txt"),
    "lm1b": (f"https://www.statmt.org/lm-benchmark/{LM1B}", "news.en*-of-*"),
}
# For archives and the files in them, as ALGORITHM:HEXADECIMAL.
CHECKSUMS = {
    "enwik8": "md5:a1fa5ffddb56f4953e226637dabbb36a",
    "text8": "md5:3bea1919949baf155f99411df5fada7e",
    "simple-examples.tgz": "md5:30177ea32e27c525793142b6bf2c8e2d",
    LM1B: "sha256:01ba60381110baf7f189dfd2b8374de371e8c9a340835793f190bdae9e90a34e",
}
CHARACTERS = {"train": 90_000_000, "valid": 5_000_000, "test": 5_000_000}
WIKITEXT_EVALUATION = {"valid": 217_646, "test": 245_569}
# Vocabulary entries and tokens per split with `<eos>` that a correct preparation reproduces.
PUBLISHED: dict[str, dict[str, int]] = {
    "enwik8, newlines kept": {"vocabulary": 205, **CHARACTERS},
    "enwik8, newlines dropped": {"vocabulary": 204},  # in bytes, line breaks are counted too
    "text8": {"vocabulary": 27, **CHARACTERS},
    "wikitext-103": {"vocabulary": 267_735, "train": 103_227_021, **WIKITEXT_EVALUATION},
    "wikitext-2": {"vocabulary": 33_278, "train": 2_088_628, **WIKITEXT_EVALUATION},
    "ptb": {"vocabulary": 10_000, "train": 929_589, "valid": 73_760, "test": 82_430},
    "lm1b": {"vocabulary": 793_471},
    "lm1b, <S> at both ends": {"vocabulary": 793_471},
}
# Other allowed folder names in `data.root`, each split's files, and in words what to put there.
FOLDERS = {"ptb": "penn", "lm1b": "one-billion-words"}
LAYOUTS = ("{}.txt.raw", "wiki.{}.tokens", "ptb.{}.txt", "{}.txt")
NEEDED = {
    "enwik8": "the file enwik8 (100,000,000 bytes)",
    "text8": "the file text8 (100,000,000 bytes)",
    "lm1b": "training-monolingual.tokenized.shuffled/ and heldout-monolingual.tokenized.shuffled/",
    "wikipedia-2015": "wikipedia-2015.txt or wikipedia-2015.txt.xz",
}


@register_corpus("enwik8", "byte", options=Enwik8Data)
def enwik8(config: Enwik8Data) -> Source:
    """First 10^8 bytes of Wikipedia in 2006: 90M, 5M and 5M bytes.

    `data.newlines=dropped` reads it as the paper did: without line breaks, 204 symbols. `kept` keeps all bytes, 205
    symbols. The corpus' name says which.
    """
    ways = {"dropped": vocabulary.bytes_without_newlines, "kept": vocabulary.bytes_with_newlines}
    allowed = "must be dropped (as in the paper) or kept"
    require(
        config.newlines in ways,
        "data.newlines",
        config.newlines,
        allowed,
    )
    return _source(config, ways[config.newlines], f", newlines {config.newlines}")


@register_corpus("text8", "char")
def text8(config: DataConfig) -> Source:
    """First 10^8 characters of Wikipedia in 2006 without markup, in a to z and spaces: 90M, 5M and 5M."""
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

    The vocabulary has the words that occur at least three times in training. `data.sentence_marks=both` puts `<S>` at
    sentence ends too, like the TensorFlow code: one sentence's end and the next one's start are then two tokens.
    """
    ways = {"start": "", "both": ", <S> at both ends"}
    marks = config.sentence_marks
    allowed = "must be start or both (as in the TensorFlow code)"
    require(
        marks in ways,
        "data.sentence_marks",
        marks,
        allowed,
    )
    cutoffs = (60_000, 100_000, 640_000)
    return _source(
        config,
        vocabulary.words_of_sentences,
        ways[marks],
        cutoffs,
    )


@register_corpus("wikipedia-2015", *vocabulary.LEVELS)
def wikipedia_2015(config: DataConfig) -> Source:
    """Plain text from Wikipedia articles in 2015 (`<doc …>` lines between them), about as large as enwik8: 90/5/5 %."""
    return _source(config, open_vocabulary(config))


def _folder(config: DataConfig) -> Path:
    """Return a corpus's folder: named after it, or as the original's download script names it.

    They are folders in `data.root`, or else in the folder that the variable TXL_DATA names, or else in a folder for
    downloads in `data.cache_dir`.

    Raises:
        OptionError: `data.root` or TXL_DATA is not a folder.
    """
    option = "data.root" if config.root else "TXL_DATA"
    root_of_user = config.root or os.environ.get("TXL_DATA")
    root = expand(root_of_user or f"{config.cache_dir}/downloads")
    is_good = not root_of_user or root.is_dir()
    require(
        is_good,
        option,
        root_of_user,
        "must be a folder",
    )
    folder = root / config.name
    other = root / FOLDERS.get(config.name, config.name)
    return other if other.is_dir() else folder


def _source(
    config: DataConfig, make: MakeVocabulary, way: str = "", cutoffs: tuple[int, ...] = ()
) -> Source:
    """Return a corpus from its files; missing ones are downloaded.

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
        fetch(config.name, folder)
        parts = _find_parts(config, folder)
    if not parts:
        raise UserError(f"data={config.name}: the download in {folder} is not complete")
    name = f"{config.name}{way}"
    return Source(
        name,
        parts,
        make,
        PUBLISHED.get(name, {}),
        cutoffs,
    )


def _find_parts(config: DataConfig, folder: Path) -> Parts:
    """Return the files in the first complete layout; nothing if none is."""
    joined = folder / folder.name
    if joined.is_file():
        return _cut_published(joined)
    for name in ("wikipedia-2015.txt", "wikipedia-2015.txt.xz"):
        if (folder / name).is_file():
            return cut_text(text_file(folder / name, config))
    shards = sorted(folder.glob("**/news.en-?????-of-00100"))
    held_out = [Part(path) for path in folder.glob("**/news.en.heldout-00000-of-00050")]
    if held_out and len(shards) == N_SHARDS_OF_LM1B:
        return {"train": [*map(Part, shards)], "valid": held_out, "test": held_out}
    for layout in LAYOUTS:
        parts = {split: [Part(folder / layout.format(split))] for split in SPLITS}
        if all(part.path.is_file() for (part,) in parts.values()):
            return parts
    return {}


def _cut_published(path: Path) -> Parts:
    """Return the splits of enwik8 or text8 in one file."""
    size = path.stat().st_size
    expected = sum(CHARACTERS.values())
    if size != expected:
        raise UserError(f"{path} has {size:,} bytes where {expected:,} are published")
    parts: Parts = {}
    start = 0
    for split, length in CHARACTERS.items():
        parts[split] = [Part(path, start, start + length)]
        start += length
    return parts


def fetch(corpus: str, folder: Path) -> None:
    """Download a corpus into its folder.

    Raises:
        UserError: it cannot be downloaded; the message says why, and which files to put where.
    """
    try:
        with prepared_folder(folder) as unfinished:
            if corpus in ADDRESSES:
                _from_archive(*ADDRESSES[corpus], unfinished)
            elif corpus.startswith("wikitext"):
                _from_hub(corpus, unfinished)
            else:
                raise UserError("there is no official address to download it from")
    except Exception as error:  # from the network, an archive or a library
        needed = NEEDED.get(corpus, "train.txt, valid.txt and test.txt")
        where = f"put {needed} there (the folder {folder.parent} is data.root or TXL_DATA)"
        reason = f"the download failed ({first_line(error)})"
        raise UserError(f"data={corpus}: not in {folder}, and {reason}; {where}") from error


def _from_archive(url: str, pattern: str, folder: Path) -> None:
    """Download an archive and unpack the files that match the pattern into a folder.

    Raises:
        UserError: an archive or file is not as expected.
    """
    archive = folder / url.rsplit("/", 1)[-1]
    with (
        urllib.request.urlopen(url, timeout=SECONDS_TO_ANSWER) as response,
        archive.open("wb") as file,
    ):
        shutil.copyfileobj(response, file)
    _compare_checksum(archive)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        shutil.unpack_archive(archive, scratch)
        archive.unlink()
        for path in Path(scratch).rglob(pattern):
            _compare_checksum(path)
            path.replace(folder / path.name)


def _compare_checksum(path: Path) -> None:
    """Compare a file with its checksum in `CHECKSUMS`, if there is one.

    Raises:
        UserError: it has another checksum.
    """
    algorithm, _, expected = CHECKSUMS.get(path.name, "md5:").partition(":")
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    if expected not in ("", digest.hexdigest()):
        has = f"has the {algorithm} {digest.hexdigest()}, expected is {expected}"
        raise UserError(f"{path.name} {has}")


def _from_hub(corpus: str, folder: Path) -> None:
    """Download WikiText through `datasets` into a folder; every row is a line."""
    import datasets  # takes a second, and few runs need it

    splits = datasets.load_dataset(WIKITEXT, f"{corpus}-v1", revision=REVISION)
    for split, split_of_hub in zip(SPLITS, SPLITS_OF_HUB, strict=True):
        path = folder / f"wiki.{split}.tokens"
        with path.open("w", encoding="utf-8", newline="\n") as file:
            for row in splits[split_of_hub]:
                file.write(row["text"].rstrip("\n") + "\n")
