"""The paper's corpora, and Wikipedia from 2015: their files, download addresses, and published sizes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from txl_lightning.config.schemas import DataConfig, Enwik8Data, Lm1bData
from txl_lightning.data import vocabulary
from txl_lightning.data.cache import Description, cached
from txl_lightning.data.sources import (
    FRACTIONS,
    SPLITS,
    MakeVocabulary,
    Part,
    Parts,
    Source,
    cut_parts,
    cut_text,
    open_vocabulary,
    register_corpus,
    text_file,
)
from txl_lightning.errors import UserError, first_line, require
from txl_lightning.files import expand

N_SHARDS_OF_LM1B = 99
WIKITEXT = "Salesforce/wikitext"
SPLITS_OF_HUB = ("train", "validation", "test")
REVISION = "b08601e04326c79dfdd32d625aee71d232d685c3"
LM1B = "1-billion-word-language-modeling-benchmark-r13output.tar.gz"
ADDRESSES = {  # of archives, and the folder in them
    "enwik8": ("https://mattmahoney.net/dc/enwik8.zip", ""),
    "text8": ("https://mattmahoney.net/dc/text8.zip", ""),
    "ptb": ("https://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz", "simple-examples/data"),
    "lm1b": (f"https://www.statmt.org/lm-benchmark/{LM1B}", ""),
}
CHARACTERS = 100_000_000
SIZES = {"train": 90_000_000, "valid": 5_000_000, "test": 5_000_000}
WIKITEXT_EVALUATION = {"valid": 217_646, "test": 245_569}
# Vocabulary entries and tokens per split with `<eos>` that a correct preparation reproduces.
PUBLISHED: dict[str, dict[str, int]] = {
    "enwik8, newlines kept": {"vocabulary": 205, **SIZES},
    "enwik8, newlines dropped": {"vocabulary": 204},  # of the bytes, line breaks are counted too
    "text8": {"vocabulary": 27, **SIZES},
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
    way = ways[config.sentence_marks]
    return _source(config, vocabulary.words_of_sentences, way, (60_000, 100_000, 640_000))


@register_corpus("wikipedia-2015", *vocabulary.LEVELS)
def wikipedia_2015(config: DataConfig) -> Source:
    """Plain text from Wikipedia articles in 2015 (`<doc …>` lines between them), about as large as enwik8: 90/5/5 %."""
    return _source(config, open_vocabulary(config))


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
        OptionError: `data.root` or TXL_DATA is not a folder.
        UserError: the corpus cannot be downloaded; the message says why, and which files to put where.
    """
    corpus = config.name
    root = _root(config)
    folders = [root / corpus, root / FOLDERS.get(corpus, corpus)]
    parts = _find_parts(
        config,
        folders[0],
    ) or _find_parts(config, folders[1])
    if not parts:
        needed = NEEDED.get(corpus, "train.txt, valid.txt and test.txt")
        where = f"put {needed} there (the folder {root} is data.root or TXL_DATA)"
        try:
            parts = _download(config)
        except Exception as error:  # of the network, an archive or a library
            reason = f"the download failed ({first_line(error)})"
            raise UserError(f"data={corpus}: not in {folders[0]}, and {reason}; {where}") from error
    name = f"{corpus}{way}"
    return Source(name, parts, make, PUBLISHED.get(name, {}), cutoffs)


def _root(config: DataConfig) -> Path:
    """Return the folder of all corpora: `data.root`, or the one that TXL_DATA names, or one in `data.cache_dir`.

    Raises:
        OptionError: `data.root` or TXL_DATA is not a folder.
    """
    option = "data.root" if config.root else "TXL_DATA"
    root_of_user = config.root or os.environ.get("TXL_DATA")
    root = expand(root_of_user or f"{config.cache_dir}/downloads")
    require(root.is_dir() or not root_of_user, option, root_of_user, "must be a folder")
    return root


def _find_parts(config: DataConfig, folder: Path) -> Parts:
    """Return the files in the first complete layout; nothing if none is."""
    joined = folder / config.name
    if joined.is_file():
        size = joined.stat().st_size
        if size != CHARACTERS:
            raise UserError(f"{joined} has {size:,} bytes where {CHARACTERS:,} are published")
        return cut_parts([Part(joined, 0, size)], FRACTIONS)
    for path in folder.glob("wikipedia-2015.txt*"):
        return cut_text(text_file(path, config))
    shards = sorted(folder.glob("**/news.en-?????-of-00100"))
    held_out = [Part(path) for path in folder.glob("**/news.en.heldout-00000-of-00050")]
    if held_out and len(shards) == N_SHARDS_OF_LM1B:
        return {"train": [*map(Part, shards)], "valid": held_out, "test": held_out}
    for layout in LAYOUTS:
        parts = {split: [Part(folder / layout.format(split))] for split in SPLITS}
        if all(part.path.is_file() for (part,) in parts.values()):
            return parts
    return {}


def _download(config: DataConfig) -> Parts:
    """Return the files of a corpus that `datasets` downloads and keeps in its own cache.

    Raises:
        Exception: it cannot be downloaded, or is not complete.
    """
    import datasets  # takes a second, and few runs need it

    if config.name.startswith("wikitext"):
        return _from_hub(config)
    if config.name not in ADDRESSES:
        raise UserError("there is no official address to download it from")
    address, inside = ADDRESSES[config.name]
    folder = Path(datasets.DownloadManager().download_and_extract(address), inside)
    parts = _find_parts(config, folder)
    if not parts:
        raise UserError(f"{folder} is not complete")
    return parts


def _from_hub(config: DataConfig) -> Parts:
    """Download WikiText through `datasets` into `data.cache_dir`; every row is a line."""
    import datasets

    def write(folder: Path) -> Description:
        splits: Any = datasets.load_dataset(
            WIKITEXT,
            f"{config.name}-v1",
            revision=REVISION,
        )
        for split, split_of_hub in zip(SPLITS, SPLITS_OF_HUB, strict=True):
            lines = [row.rstrip("\n") + "\n" for row in splits[split_of_hub]["text"]]
            (folder / f"{split}.uint8").write_text(
                "".join(lines),
                encoding="utf-8",
            )
        return {}

    folder = cached(config.cache_dir, (WIKITEXT, config.name, REVISION), write).folder
    return {split: [Part(folder / f"{split}.uint8")] for split in SPLITS}
