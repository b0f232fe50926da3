"""Corpora of the paper, and Wikipedia of 2015: their files, how they are split, and their published sizes."""

from __future__ import annotations

import filecmp
import os
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

from txl_lightning.config.schemas import DataConfig
from txl_lightning.data import counting
from txl_lightning.data.download import TRAIN_SHARDS_OF_LM1B, fetch
from txl_lightning.data.reading import Format, Part, fractions_of
from txl_lightning.data.sources import (
    ALIGNMENT,
    OPEN_VOCABULARY,
    SPLITS,
    Parts,
    Published,
    Source,
    Split,
    by_split,
    level_of,
)
from txl_lightning.errors import OptionError, UserError, require

Found = TypeVar("Found")
PREFIX_FRACTIONS = (0.9, 0.05, 0.05)
SHARDS_OF_LM1B = "**/news.en-?????-of-00100"
# Longer than any line of WikiText.
LONGEST_LINE = 1 << 20


def _splits(train: int, valid: int, test: int) -> dict[str, int]:
    return {"train": train, "valid": valid, "test": test}


CHARACTERS = _splits(90_000_000, 5_000_000, 5_000_000)
WIKITEXT_EVALUATION = {"valid": 217_646, "test": 245_569}

PUBLISHED: dict[str, Published] = {
    "enwik8, newlines kept": Published(205, CHARACTERS),
    # Published without line breaks: the number of symbols, but not that of bytes.
    "enwik8, newlines dropped": Published(204),
    # The original's script strips spaces at both ends of every split.
    "text8": Published(27, CHARACTERS, slack=2),
    "wikitext-103": Published(267_735, {"train": 103_227_021, **WIKITEXT_EVALUATION}),
    "wikitext-103.prefix": Published(None, WIKITEXT_EVALUATION),
    "wikitext-103.prefix, counted words": Published(267_735, WIKITEXT_EVALUATION),
    "wikitext-2": Published(33_278, {"train": 2_088_628, **WIKITEXT_EVALUATION}),
    "ptb": Published(10_000, _splits(929_589, 73_760, 82_430)),
    "lm1b": Published(793_471),
}

# Cut-offs of the adaptive embedding and softmax (paper's scripts).
CUTOFFS: dict[str, tuple[int, ...]] = {
    "wikitext-103": (20_000, 40_000, 200_000),
    "lm1b": (60_000, 100_000, 640_000),
}


def enwik8(config: DataConfig) -> Source:
    """First 10^8 bytes of Wikipedia of 2006: 90M, 5M and 5M bytes.

    `data.newlines=dropped` reads it as the paper did: without line breaks, 204 symbols. `kept` keeps all bytes, 205
    symbols. The corpus' name says which.
    """
    level_of(config, ("byte",))
    ways = {"dropped": counting.bytes_without_newlines, "kept": counting.bytes_with_newlines}
    require(config.newlines in ways, "data.newlines", config.newlines, "must be dropped (as in the paper) or kept")
    folder, vocabulary = _Folder(config, ("enwik8",)), ways[config.newlines]
    way = f"newlines {config.newlines}"
    if config.prefix:
        parts = _prefix(folder, "enwik8.prefix")
        return Source(f"enwik8.prefix, {way}", parts, vocabulary)
    parts = _find(folder, lambda: _hundred_mb(folder, "enwik8", "numbers"), "enwik8.prefix")
    return Source(f"enwik8, {way}", parts, vocabulary, published=PUBLISHED[f"enwik8, {way}"])


def text8(config: DataConfig) -> Source:
    """First 10^8 characters of Wikipedia of 2006 without markup, in a to z and spaces: 90M, 5M and 5M."""
    level_of(config, ("char",))
    folder = _Folder(config, ("text8",))
    if config.prefix:
        return Source("text8.prefix", _prefix(folder, "text8.prefix"), counting.characters)
    parts = _find(folder, lambda: _hundred_mb(folder, "text8", "spaced"), "text8.prefix")
    return Source("text8", parts, counting.characters, published=PUBLISHED["text8"])


def wikitext(config: DataConfig) -> Source:
    """WikiText-103 and WikiText-2: words and `<eos>`, the vocabulary from the training split.

    With `data.prefix` WikiText-103 trains on the beginning of its training split and evaluates on the whole other
    splits; the vocabulary comes from `train-word-counts.txt` if that file is present.
    """
    level_of(config, ("word",))
    if config.name == "wikitext-2":
        _no_prefix(config)
    folder, name = _Folder(config, (config.name,)), config.name
    cutoffs = CUTOFFS.get(name, ())
    if config.prefix:
        parts = _wikitext_prefix(folder)
        counts = folder.path / "train-word-counts.txt"
        if counts.is_file():
            listed, published = (Part(counts), counting.words_of_count_file), PUBLISHED[f"{name}.prefix, counted words"]
            return Source(f"{name}.prefix", parts, counting.words, listed, published, cutoffs)
        return Source(f"{name}.prefix", parts, counting.words, published=PUBLISHED[f"{name}.prefix"])
    parts = _find(folder, lambda: _whole_files(folder, "wiki.{}.tokens", "{}.txt"), "wiki.train.prefix.tokens")
    return Source(name, parts, counting.words, published=PUBLISHED[name], cutoffs=cutoffs)


def ptb(config: DataConfig) -> Source:
    """Penn Treebank as Mikolov prepared it: 10,000 words with `<eos>`, or the characters of these words."""
    level_of(config, ("word", "char"))
    _no_prefix(config)
    if config.level == "word":
        folder = _Folder(config, ("ptb", "penn"))
        parts = _find(folder, lambda: _whole_files(folder, "{}.txt", "ptb.{}.txt"))
        return Source("ptb", parts, counting.words, published=PUBLISHED["ptb"])
    folder = _Folder(config, ("pennchar", "ptb-char"))
    if not folder.path.is_dir():
        folder = _Folder(config, ("ptb",))
    patterns = ["ptb.char.{}.txt", *([] if folder.path.name == "ptb" else ["{}.txt"])]
    paths = _find(folder, lambda: folder.splits(*patterns))
    return Source("ptb, characters", by_split(Part(p, format="spaced") for p in paths.values()), counting.characters)


def lm1b(config: DataConfig) -> Source:
    """One Billion Word benchmark: shuffled sentences, each begins with `<S>`.

    The vocabulary is `1b_word_vocab.txt` if that file is present, otherwise the words that occur at least three times
    in the training shards (the rule that made that file). `data.prefix` allows some of the training shards, or held-out
    shards only (cut into splits); the corpus' name says which. `data.sentence_marks=both` has `<S>` at the ends of
    sentences too, as the TensorFlow code: the end of a sentence and the start of the next one are then two tokens.
    """
    level_of(config, ("word",))
    marks, allowed = config.sentence_marks, "must be start or both (as in the TensorFlow code)"
    require(marks in ("start", "both"), "data.sentence_marks", marks, allowed)
    folder = _Folder(config, ("lm1b", "one-billion-words"))
    if config.prefix:
        parts, name = _some_of_lm1b(folder)
    else:
        partial = ("heldout-*.tokens", SHARDS_OF_LM1B)
        parts, name = _find(folder, lambda: _all_of_lm1b(folder), *partial), "lm1b"
    listed = folder.path / "1b_word_vocab.txt"
    vocabulary = (Part(listed), counting.words_of_list) if listed.is_file() else None
    published = PUBLISHED["lm1b"] if vocabulary or not config.prefix else None
    if parts["valid"] == parts["test"]:
        name += ", valid = test = heldout-00000"
    if closed := marks == "both":
        name += ", <S> at both ends"
    return Source(name, parts, counting.words_of_sentences, vocabulary, published, CUTOFFS["lm1b"], closed)


def wikipedia_2015(config: DataConfig) -> Source:
    """Plain text of Wikipedia articles of 2015 (`<doc …>` lines between them), of about enwik8's size: 90/5/5 %."""
    level = level_of(config, ("byte", "char", "word"))
    _no_prefix(config)
    folder = _Folder(config, ("wikipedia-2015",))
    paths = _find(folder, lambda: folder.find("wikipedia-2015.txt") or folder.find("wikipedia-2015.txt.xz") or None)
    parts = by_split(fractions_of(paths[0], PREFIX_FRACTIONS, ALIGNMENT[level]))
    return Source("wikipedia-2015", parts, OPEN_VOCABULARY[level])


class _Folder:
    """Folder of one corpus inside the folder of all corpora.

    Args:
        config: its `root` is the folder of all corpora, or else the variable TXL_DATA, or else a folder for downloads
            in `cache_dir`.
        names: possible names of the corpus' folder; the first one is used for downloads.

    Raises:
        OptionError: `root` or TXL_DATA is not a folder.
    """

    def __init__(self, config: DataConfig, names: Sequence[str]) -> None:
        self.config = config
        root = config.root or os.environ.get("TXL_DATA")
        self.root = Path(root or Path(config.cache_dir) / "downloads").expanduser()
        if root and not self.root.is_dir():
            raise OptionError("data.root" if config.root else "TXL_DATA", root, "must be a folder")
        found = [self.root / name for name in names if (self.root / name).is_dir()]
        self.path = found[0] if found else self.root / names[0]

    def splits(self, *patterns: str) -> dict[Split, Path] | None:
        """Return the files of the three splits by the first pattern that has all; `{}` stands for the split."""
        for pattern in patterns:
            paths = {split: self.path / pattern.format(split) for split in SPLITS}
            if all(path.is_file() for path in paths.values()):
                return paths
        return None

    def find(self, pattern: str) -> list[Path]:
        """Return the files that match a glob pattern, sorted by name."""
        return sorted(self.path.glob(pattern))


def _find(folder: _Folder, find: Callable[[], Found | None], *partial: str) -> Found:
    """Return what `find` finds; download the corpus first if it is missing, unless a part of it is present."""
    found, name = find(), folder.config.name
    if found is None:
        for part in (path for pattern in partial for path in folder.find(pattern)[:1]):
            there = f"{folder.path} has only a part of it ({part.name})"
            raise OptionError("data", name, f"{there}: data.prefix=true uses that, under its own name")
        fetch(name, folder.path)
        found = find()
    if found is None:
        raise UserError(f"data={name}: the download in {folder.path} is not complete")
    return found


def _prefix(folder: _Folder, name: str) -> Parts:
    path = folder.path / name
    require(path.is_file(), "data.prefix", True, f"there is no {path}")
    return by_split(fractions_of(path, PREFIX_FRACTIONS, "byte"))


def _no_prefix(config: DataConfig) -> None:
    require(not config.prefix, "data.prefix", config.prefix, f"must be false for data={config.name}")


def _hundred_mb(folder: _Folder, name: str, prepared: Format) -> Parts | None:
    """Find the 10^8 bytes in one file, or in the three files of the original's scripts (`.raw`: not prepared)."""
    whole = folder.path / name
    if whole.is_file():
        size, ends = whole.stat().st_size, list(accumulate(CHARACTERS.values()))
        if size != ends[-1]:
            raise UserError(f"{whole} has {size:,} bytes where {ends[-1]:,} are published")
        return by_split([Part(whole, 0, ends[0]), Part(whole, ends[0], ends[1]), Part(whole, ends[1])])
    if raw := folder.splits("{}.txt.raw"):
        return by_split(map(Part, raw.values()))
    files = folder.splits("{}.txt")
    return by_split(Part(path, format=prepared) for path in files.values()) if files else None


def _whole_files(folder: _Folder, *patterns: str) -> Parts | None:
    files = folder.splits(*patterns)
    return by_split(map(Part, files.values())) if files else None


def _wikitext_prefix(folder: _Folder) -> Parts:
    """Find the training prefix, without its last incomplete line, and the whole evaluation splits."""
    paths = [folder.path / f"wiki.{name}.tokens" for name in ("train.prefix", "valid", "test")]
    for path in paths:
        require(path.is_file(), "data.prefix", True, f"there is no {path}")
    with paths[0].open("rb") as file:
        file.seek(-min(paths[0].stat().st_size, LONGEST_LINE), os.SEEK_END)
        last_line = file.read().rpartition(b"\n")[2]
    stop = paths[0].stat().st_size - len(last_line)
    return by_split([Part(paths[0], 0, stop), Part(paths[1]), Part(paths[2])])


def _all_of_lm1b(folder: _Folder) -> Parts | None:
    train = folder.find("train.txt") or folder.find(SHARDS_OF_LM1B)
    held_out = _held_out(folder)
    complete = len(train) == TRAIN_SHARDS_OF_LM1B or train[:1] == [folder.path / "train.txt"]
    return {"train": list(map(Part, train)), **held_out} if complete and held_out else None


def _held_out(folder: _Folder) -> Parts | None:
    # The original's preparation writes heldout-00000 twice, as valid and as test.
    valid, test = folder.path / "valid.txt", folder.path / "test.txt"
    if valid.is_file() and test.is_file():
        same = filecmp.cmp(valid, test, shallow=False)
        return {"valid": [Part(valid)], "test": [Part(valid if same else test)]}
    paths = folder.find("**/news.en.heldout-00000-of-00050")
    return {"valid": [Part(paths[0])], "test": [Part(paths[0])]} if paths else None


def _some_of_lm1b(folder: _Folder) -> tuple[Parts, str]:
    shards, held_out, pieces = folder.find(SHARDS_OF_LM1B), _held_out(folder), folder.find("heldout-*.tokens")
    if shards and held_out:
        name = f"lm1b.{len(shards)}-of-{TRAIN_SHARDS_OF_LM1B}-shards"
        return {"train": list(map(Part, shards)), **held_out}, name
    require(bool(pieces), "data.prefix", True, f"there are no shards of lm1b in {folder.path}")
    cut = [by_split(fractions_of(path, PREFIX_FRACTIONS, "line")) for path in pieces]
    parts = {split: [part for one in cut for part in one[split]] for split in SPLITS}
    return parts, f"lm1b.{'+'.join(path.stem for path in pieces)}"
