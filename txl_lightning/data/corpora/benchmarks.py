"""Corpora of the paper, and Wikipedia of 2015: their files and how they are split."""

from __future__ import annotations

import filecmp
import os
from collections.abc import Callable
from itertools import pairwise
from typing import TypeVar

from txl_lightning.config.schemas import DataConfig
from txl_lightning.data.corpora.official import HUNDRED_MB, TRAIN_SHARDS_OF_LM1B, fetch
from txl_lightning.data.corpora.published import CUTOFFS, PUBLISHED
from txl_lightning.data.corpora.sources import (
    ALIGNMENT,
    OPEN_VOCABULARY,
    PREFIX_FRACTIONS,
    SPLITS,
    Folder,
    Parts,
    Source,
    by_split,
    level_of,
)
from txl_lightning.data.reading import Format, Part, fractions_of
from txl_lightning.data.vocabulary import counting
from txl_lightning.errors import UserError, require

Found = TypeVar("Found")
CUTS_OF_HUNDRED_MB = (0, 90_000_000, 95_000_000, None)
SHARDS_OF_LM1B = "**/news.en-?????-of-00100"
# Longer than any line of WikiText.
LONGEST_LINE = 1 << 20


def enwik8(config: DataConfig) -> Source:
    """First 10^8 bytes of Wikipedia of 2006: 90M, 5M and 5M bytes.

    `data.newlines=dropped` reads it as the paper did: without line breaks, 204 symbols. `kept` keeps all bytes, 205
    symbols. The corpus' name says which.
    """
    level_of(config, ("byte",))
    ways = {"dropped": counting.bytes_without_newlines, "kept": counting.bytes_with_newlines}
    require(config.newlines in ways, "data.newlines", config.newlines, "must be dropped (as in the paper) or kept")
    folder, vocabulary = Folder(config, ("enwik8",)), ways[config.newlines]
    way = f"newlines {config.newlines}"
    if config.prefix:
        parts = _prefix(folder, "enwik8.prefix")
        return Source(f"enwik8.prefix, {way}", parts, vocabulary)
    parts = _find(folder, lambda: _hundred_mb(folder, "enwik8", "numbers"), "enwik8.prefix")
    return Source(f"enwik8, {way}", parts, vocabulary, published=PUBLISHED[f"enwik8, {way}"])


def text8(config: DataConfig) -> Source:
    """First 10^8 characters of Wikipedia of 2006 without markup, in a to z and spaces: 90M, 5M and 5M."""
    level_of(config, ("char",))
    folder = Folder(config, ("text8",))
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
    folder, name = Folder(config, (config.name,)), config.name
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
        folder = Folder(config, ("ptb", "penn"))
        parts = _find(folder, lambda: _whole_files(folder, "{}.txt", "ptb.{}.txt"))
        return Source("ptb", parts, counting.words, published=PUBLISHED["ptb"])
    folder = Folder(config, ("pennchar", "ptb-char"))
    if not folder.path.is_dir():
        folder = Folder(config, ("ptb",))
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
    folder = Folder(config, ("lm1b", "one-billion-words"))
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
    folder = Folder(config, ("wikipedia-2015",))
    paths = _find(folder, lambda: folder.find("wikipedia-2015.txt") or folder.find("wikipedia-2015.txt.xz") or None)
    parts = by_split(fractions_of(paths[0], PREFIX_FRACTIONS, ALIGNMENT[level]))
    return Source("wikipedia-2015", parts, OPEN_VOCABULARY[level])


def _find(folder: Folder, find: Callable[[], Found | None], *partial: str) -> Found:
    """Return what `find` finds; download the corpus first if it is missing, unless a part of it is present."""
    found = find()
    if found is None:
        for pattern in partial:
            if paths := folder.find(pattern):
                folder.require_prefix_option(paths[0])
        fetch(folder.config.name, folder.path)
        found = find()
    if found is None:
        raise UserError(f"data={folder.config.name}: the download in {folder.path} is not complete")
    return found


def _prefix(folder: Folder, name: str) -> Parts:
    path = folder.path / name
    require(path.is_file(), "data.prefix", True, f"there is no {path}")
    return by_split(fractions_of(path, PREFIX_FRACTIONS, "byte"))


def _no_prefix(config: DataConfig) -> None:
    require(not config.prefix, "data.prefix", config.prefix, f"must be false for data={config.name}")


def _hundred_mb(folder: Folder, name: str, prepared: Format) -> Parts | None:
    """Find the 10^8 bytes in one file, or in the three files of the original's scripts (`.raw`: not prepared)."""
    whole = folder.path / name
    if whole.is_file():
        size = whole.stat().st_size
        if size != HUNDRED_MB:
            raise UserError(f"{whole} has {size:,} bytes where {HUNDRED_MB:,} are published")
        cuts = CUTS_OF_HUNDRED_MB
        return by_split(Part(whole, a or 0, b) for a, b in pairwise(cuts))
    if raw := folder.splits("{}.txt.raw"):
        return by_split(map(Part, raw.values()))
    files = folder.splits("{}.txt")
    return by_split(Part(path, format=prepared) for path in files.values()) if files else None


def _whole_files(folder: Folder, *patterns: str) -> Parts | None:
    files = folder.splits(*patterns)
    return by_split(map(Part, files.values())) if files else None


def _wikitext_prefix(folder: Folder) -> Parts:
    """Find the training prefix, without its last incomplete line, and the whole evaluation splits."""
    paths = [folder.path / f"wiki.{name}.tokens" for name in ("train.prefix", "valid", "test")]
    for path in paths:
        require(path.is_file(), "data.prefix", True, f"there is no {path}")
    with paths[0].open("rb") as file:
        file.seek(-min(paths[0].stat().st_size, LONGEST_LINE), os.SEEK_END)
        last_line = file.read().rpartition(b"\n")[2]
    stop = paths[0].stat().st_size - len(last_line)
    return by_split([Part(paths[0], 0, stop), Part(paths[1]), Part(paths[2])])


def _all_of_lm1b(folder: Folder) -> Parts | None:
    train = folder.find("train.txt") or folder.find(SHARDS_OF_LM1B)
    held_out = _held_out(folder)
    complete = len(train) == TRAIN_SHARDS_OF_LM1B or train[:1] == [folder.path / "train.txt"]
    return {"train": list(map(Part, train)), **held_out} if complete and held_out else None


def _held_out(folder: Folder) -> Parts | None:
    # The original's preparation writes heldout-00000 twice, as valid and as test.
    valid, test = folder.path / "valid.txt", folder.path / "test.txt"
    if valid.is_file() and test.is_file():
        same = filecmp.cmp(valid, test, shallow=False)
        return {"valid": [Part(valid)], "test": [Part(valid if same else test)]}
    paths = folder.find("**/news.en.heldout-00000-of-00050")
    return {"valid": [Part(paths[0])], "test": [Part(paths[0])]} if paths else None


def _some_of_lm1b(folder: Folder) -> tuple[Parts, str]:
    shards, held_out, pieces = folder.find(SHARDS_OF_LM1B), _held_out(folder), folder.find("heldout-*.tokens")
    if shards and held_out:
        name = f"lm1b.{len(shards)}-of-{TRAIN_SHARDS_OF_LM1B}-shards"
        return {"train": list(map(Part, shards)), **held_out}, name
    require(bool(pieces), "data.prefix", True, f"there are no shards of lm1b in {folder.path}")
    cut = [by_split(fractions_of(path, PREFIX_FRACTIONS, "line")) for path in pieces]
    parts = {split: [part for one in cut for part in one[split]] for split in SPLITS}
    return parts, f"lm1b.{'+'.join(path.stem for path in pieces)}"
