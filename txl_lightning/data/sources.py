"""Sources of text: description of a corpus before it is encoded, the standard library's files, files of the user."""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from txl_lightning.config.schemas import DataConfig
from txl_lightning.data import counting
from txl_lightning.data.reading import Alignment, Part, fractions_of, fractions_of_all
from txl_lightning.data.vocabulary import LEVELS, Level, Vocabulary
from txl_lightning.errors import OptionError, UserError, require

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")
EXCLUDED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}

Parts = dict[Split, list[Part]]
MakeVocabulary = Callable[[Iterable[bytes]], Vocabulary]
OPEN_VOCABULARY: dict[Level, MakeVocabulary] = {
    "byte": counting.all_bytes,
    "char": counting.characters_and_unknown,
    "word": counting.words,
    "bpe": counting.all_bytes,  # the alphabet; `load_corpus` trains or reads the tokenizer
}
ALIGNMENT: dict[Level, Alignment] = {"byte": "byte", "char": "char", "word": "line", "bpe": "char"}


@dataclass(frozen=True)
class Published:
    """Published sizes of a corpus, which a correct preparation reproduces.

    Args:
        vocabulary: number of entries; None is not checked.
        tokens: number of tokens by split, with `<eos>`.
        slack: number of tokens by which a split may be shorter.
    """

    vocabulary: int | None = None
    tokens: Mapping[str, int] = field(default_factory=dict)
    slack: int = 0

    def check(self, vocabulary: int, tokens: Mapping[str, int]) -> None:
        """Compare the sizes of prepared tokens with the published ones.

        Raises:
            UserError: a size differs; the message has both.
        """
        wrong = []
        if self.vocabulary not in (None, vocabulary):
            wrong.append(f"a vocabulary of {vocabulary:,} where {self.vocabulary:,} are published")
        wrong += [
            f"{tokens[split]:,} tokens in {split} where {published:,} are published"
            for split, published in self.tokens.items()
            if not published - self.slack <= tokens[split] <= published
        ]
        if wrong:
            raise UserError(f"the preparation has {', '.join(wrong)}: it is not the published text, or not all of it")


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
        documents: whether every part is a document.
    """

    name: str
    parts: Parts
    vocabulary: MakeVocabulary
    vocabulary_file: tuple[Part, Callable[[Part], Vocabulary]] | None = None
    published: Published | None = None
    cutoffs: tuple[int, ...] = ()
    closed_sentences: bool = False
    documents: bool = False

    @property
    def recipe(self) -> str:
        """Name of the preparation, for the cache: tokens depend on it and on the bytes."""
        listed = self.vocabulary_file[1].__name__ if self.vocabulary_file else ""
        return f"{self.vocabulary.__name__} {listed}{self.marks}"

    @property
    def marks(self) -> str:
        """Part of the cache's key: which marks and positions the tokens have."""
        closed = " closed sentences" if self.closed_sentences else ""
        return closed + (" documents" if self.documents else "")


def by_split(parts: Iterable[Part]) -> Parts:
    """Assign one part to each split, in the order train, valid, test."""
    return {split: [part] for split, part in zip(SPLITS, parts, strict=True)}


def python_stdlib(config: DataConfig) -> Source:
    """Source files of the running Python's standard library, without its tests.

    Every file is a document. They are ordered by a hash of their names, so that the splits are similar, and never cut.
    The splits have about 90 %, 5 % and 5 % of the bytes.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in EXCLUDED_FOLDERS]  # not entered: packages may be many
        paths += [Path(folder, name) for name in names if name.endswith(".py")]
    paths.sort(key=lambda path: hashlib.sha256(path.relative_to(root).as_posix().encode()).digest())
    ends = np.cumsum([path.stat().st_size for path in paths])
    if not paths or ends[-1] == 0:
        raise UserError(f"data=python-stdlib: this Python has no source files under {root}; use data=file data.path=…")
    cuts = [0, *np.searchsorted(ends, [0.9 * ends[-1], 0.95 * ends[-1]]).tolist(), len(paths)]
    parts = {split: [Part(p) for p in paths[a:b]] for split, a, b in zip(SPLITS, cuts, cuts[1:], strict=False)}
    version = ".".join(map(str, sys.version_info[:3]))
    return Source(f"python-stdlib {version}", parts, OPEN_VOCABULARY[level_of(config, LEVELS)], documents=True)


def file(config: DataConfig) -> Source:
    """One file, several, or all files of a folder, cut into consecutive splits by `data.fractions`.

    Every file is a document. Documents follow each other in the order of their paths, and nothing is put between them.
    A cut is never inside a character or, for words, a line; a document that a cut goes through continues as the first
    one of the next split. In a vocabulary with `<S>`, that of a model of lm1b, every line is a sentence as in lm1b.
    """
    level = level_of(config, LEVELS)
    fractions = list(config.fractions)
    good = len(fractions) == 3 and min(fractions) > 0 and abs(sum(fractions) - 1) < 1e-6
    require(good, "data.fractions", fractions, "must be three positive numbers (train, valid, test) with sum 1")
    name, paths = _documents(config.path)
    if len(paths) == 1:
        parts = by_split(fractions_of(paths[0], fractions, ALIGNMENT[level]))
    else:
        parts = dict(zip(SPLITS, fractions_of_all(paths, fractions, ALIGNMENT[level]), strict=True))
    closed = config.sentence_marks == "both"
    return Source(name, parts, OPEN_VOCABULARY[level], closed_sentences=closed, documents=True)


def _documents(given: Any) -> tuple[str, list[Path]]:
    """Return a name for the files of `data.path`, and the files that are not empty, sorted by path.

    Of a folder these are all files in it and its folders, without those whose name begins with a dot.
    """
    listed = [given] if isinstance(given, str) else list(given) if isinstance(given, list) else []
    allowed = "must be a file, a folder or a list of files for data=file (data.path=PATH)"
    require(bool(listed) and all(isinstance(path, str) and path for path in listed), "data.path", given, allowed)
    roots = [Path(path).expanduser() for path in listed]
    paths = []
    try:
        for root in roots:
            paths += [path for path in root.rglob("*") if _is_visible_file(path, root)] if root.is_dir() else [root]
        filled = [path for path in sorted(set(paths)) if _has_content(path)]
    except OSError as error:
        reason = f"cannot be read ({error.strerror})" if len(paths) == 1 else f"{error.filename}: {error.strerror}"
        raise OptionError("data.path", given, reason) from error
    require(bool(filled), "data.path", given, "must not be empty")
    packed = [path.name for path in filled if path.suffix == ".xz"]
    require(len(filled) == 1 or not packed, "data.path", given, f"must be unpacked: {', '.join(packed[:1])}")
    others = len(filled) - 1 if len(roots) > 1 else 0
    return (roots[0].name or roots[0].resolve().name) + (f" and {others} more" if others else ""), filled


def _is_visible_file(path: Path, root: Path) -> bool:
    return path.is_file() and not any(name.startswith(".") for name in path.relative_to(root).parts)


def _has_content(path: Path) -> bool:
    with path.open("rb") as opened:
        return bool(opened.read(1))


def level_of(config: DataConfig, levels: Sequence[Level]) -> Level:
    """Return the level of a config.

    Raises:
        OptionError: the corpus does not have this level.
    """
    for level in levels:
        if level == config.level:
            return level
    raise OptionError("data.level", config.level, f"must be {' or '.join(levels)} for data={config.name}")
