"""Sources of text: the standard library's files, a file of the user, and the folder of a benchmark."""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from txl_lightning.config.schemas import DataConfig
from txl_lightning.data.corpora.published import Published
from txl_lightning.data.reading import Alignment, Part, fractions_of
from txl_lightning.data.vocabulary import counting
from txl_lightning.data.vocabulary.symbols import LEVELS, Level, Vocabulary
from txl_lightning.errors import OptionError, UserError, require

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")
EXCLUDED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
PREFIX_FRACTIONS = (0.9, 0.05, 0.05)

Parts = dict[Split, list[Part]]
MakeVocabulary = Callable[[Iterable[bytes]], Vocabulary]
OPEN_VOCABULARY: dict[Level, MakeVocabulary] = {
    "byte": counting.all_bytes,
    "char": counting.characters_and_unknown,
    "word": counting.words,
}
ALIGNMENT: dict[Level, Alignment] = {"byte": "byte", "char": "char", "word": "line"}


@dataclass(frozen=True)
class Source:
    """Text of a corpus before it is encoded.

    Args:
        name: as reports show it.
        parts: bytes of every split.
        vocabulary: makes the vocabulary from the bytes of the training split.
        vocabulary_file: file that lists the vocabulary, and the function that reads it; replaces `vocabulary`.
        published: sizes that the encoded tokens must have.
        cutoffs: usual cut-offs of the adaptive softmax.
        closed_sentences: whether `<S>` stands at both ends of a sentence (lm1b).
    """

    name: str
    parts: Parts
    vocabulary: MakeVocabulary
    vocabulary_file: tuple[Part, Callable[[Part], Vocabulary]] | None = None
    published: Published | None = None
    cutoffs: tuple[int, ...] = ()
    closed_sentences: bool = False

    @property
    def recipe(self) -> str:
        """Name of the preparation, for the cache: tokens depend on it and on the bytes."""
        listed = self.vocabulary_file[1].__name__ if self.vocabulary_file else ""
        return f"{self.vocabulary.__name__} {listed}{self.marks}"

    @property
    def marks(self) -> str:
        """Part of the cache's key: empty for the usual marks of sentences."""
        return " closed sentences" if self.closed_sentences else ""


def by_split(parts: Iterable[Part]) -> Parts:
    """Assign one part to each split, in the order train, valid, test."""
    return {split: [part] for split, part in zip(SPLITS, parts, strict=True)}


def python_stdlib(config: DataConfig) -> Source:
    """Source files of the running Python's standard library, without its tests.

    Files are ordered by a hash of their names, so that the splits are similar, and never cut. The splits have about
    90 %, 5 % and 5 % of the bytes.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = [p for p in root.rglob("*.py") if not EXCLUDED_FOLDERS & set(p.relative_to(root).parts)]
    paths.sort(key=lambda path: hashlib.sha256(path.relative_to(root).as_posix().encode()).digest())
    ends = np.cumsum([path.stat().st_size for path in paths])
    if not paths or ends[-1] == 0:
        raise UserError(f"data=python-stdlib: this Python has no source files under {root}; use data=file data.path=…")
    cuts = [0, *np.searchsorted(ends, [0.9 * ends[-1], 0.95 * ends[-1]]).tolist(), len(paths)]
    parts = {split: [Part(p) for p in paths[a:b]] for split, a, b in zip(SPLITS, cuts, cuts[1:], strict=False)}
    version = ".".join(map(str, sys.version_info[:3]))
    return Source(f"python-stdlib {version}", parts, OPEN_VOCABULARY[level_of(config, LEVELS)])


def file(config: DataConfig) -> Source:
    """One file, cut into consecutive splits by `data.fractions`, never inside a character or, for words, a line."""
    level = level_of(config, LEVELS)
    if not config.path:
        raise OptionError("data.path", config.path, "must be a file for data=file (data.path=PATH)")
    path = Path(config.path).expanduser()
    fractions = list(config.fractions)
    good = len(fractions) == 3 and min(fractions) > 0 and abs(sum(fractions) - 1) < 1e-6
    require(good, "data.fractions", fractions, "must be three positive numbers (train, valid, test) with sum 1")
    try:
        with path.open("rb") as opened:
            content = opened.read(1)
    except OSError as error:
        raise OptionError("data.path", config.path, f"cannot be read ({error.strerror})") from error
    require(bool(content), "data.path", config.path, "must not be empty")
    return Source(path.name, by_split(fractions_of(path, fractions, ALIGNMENT[level])), OPEN_VOCABULARY[level])


def level_of(config: DataConfig, levels: Sequence[Level]) -> Level:
    """Return the level of a config.

    Raises:
        OptionError: the corpus does not have this level.
    """
    for level in levels:
        if level == config.level:
            return level
    raise OptionError("data.level", config.level, f"must be {' or '.join(levels)} for data={config.name}")


class Folder:
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

    def require_prefix_option(self, part: Path) -> None:
        """Require `data.prefix` when only a part of the corpus is present.

        Raises:
            OptionError: `data.prefix` is false.
        """
        allowed = f"{self.path} has only a part of it ({part.name}): data.prefix=true uses that, under its own name"
        require(self.config.prefix, "data", self.config.name, allowed)
