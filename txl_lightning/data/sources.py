"""Sources of text: description of a corpus before it is encoded, Python source that is installed."""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from txl_lightning.config.schemas import DataConfig
from txl_lightning.data import vocabulary
from txl_lightning.data.reading import SPLITS, Alignment, Part, Parts
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.errors import UserError, notice, require

PACKAGES = {"sympy": "1.14.0", "networkx": "3.6.1"}  # as in `constraints.txt`; torch needs both
PACKAGES_CHECKSUM = "9cf24e9700e0a49d0fd0ec4c3e620ab30311cf772b9846100a968ff394086b9f"
EXCLUDED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}

MakeVocabulary = Callable[..., Vocabulary]  # of chunks of bytes
OPEN_VOCABULARY: dict[str, MakeVocabulary] = {
    "byte": vocabulary.all_bytes,
    "char": vocabulary.characters_and_unknown,
    "word": vocabulary.words,
    "bpe": vocabulary.all_bytes,  # the alphabet; `load_corpus` trains or reads the tokenizer
    "ids": vocabulary.all_bytes,  # not used: `load_corpus` reads names or the largest id
}
MIN_COUNTS = {"word": 2, "char": 1}  # unless `data.min_count` is given: rarer ones are <unk>, which is so trained
ALIGNMENT: dict[str, Alignment] = {"byte": "byte", "char": "char", "word": "line", "bpe": "char"}


def open_vocabulary(config: DataConfig) -> MakeVocabulary:
    """Return what makes the vocabulary of a text that has no published one.

    Raises:
        OptionError: `data.min_count` is not possible.
    """
    make, least = OPEN_VOCABULARY[config.level], config.min_count
    if config.level not in MIN_COUNTS:
        return make
    least = MIN_COUNTS[config.level] if least is None else least
    require(least >= 1, "data.min_count", least, "must be an integer >= 1")
    return make if least == 1 else partial(make, min_count=least)


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
        differs = self.vocabulary not in (None, vocabulary)
        wrong = [f"a vocabulary of {vocabulary:,} where {self.vocabulary:,} are published"] if differs else []
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
        vocabulary: makes the vocabulary from the bytes of the training split, or of `listed`.
        listed: file that lists the vocabulary, if there is one.
        published: sizes that the encoded tokens must have.
        cutoffs: usual cut-offs of the adaptive softmax.
        closed_sentences: whether `<S>` stands at both ends of a sentence (lm1b).
        documents: whether every part is a document.
        checksum: checksum of the corpus, if the text of this name is known; another text is reported.
    """

    name: str
    parts: Parts
    vocabulary: MakeVocabulary
    listed: tuple[Part, ...] = ()
    published: Published | None = None
    cutoffs: tuple[int, ...] = ()
    closed_sentences: bool = False
    documents: bool = False
    checksum: str | None = None


def python_stdlib(config: DataConfig) -> Source:
    """Source files of the running Python's standard library, without its tests (see `_python_files`)."""
    version = ".".join(map(str, sys.version_info[:3]))
    root = Path(sysconfig.get_paths()["stdlib"])
    return _python_files(f"python-stdlib {version}", {root: root}, config)


def python_packages(config: DataConfig) -> Source:
    """Source files of the installed SymPy and NetworkX, without their tests (see `_python_files`).

    The versions of `PACKAGES` are the same text on every machine.
    """
    versions, roots = {}, {}
    for package in PACKAGES:
        found = find_spec(package)  # does not import it
        installed = [distribution.version for distribution in metadata.distributions(name=package)]
        if not installed or found is None or found.origin is None:
            raise UserError(f"data={config.name}: {package} is not installed; use data=file data.path=…")
        root = Path(found.origin).parent
        versions[package], roots[root] = installed[0], root.parent
    known, name = (" + ".join(f"{package} {of[package]}" for package in PACKAGES) for of in (PACKAGES, versions))
    if name != known:
        notice(f"data={config.name}: this text is {name}; losses of {known} cannot be compared with it")
    return replace(_python_files(name, roots, config), checksum=PACKAGES_CHECKSUM if name == known else None)


def _python_files(name: str, roots: Mapping[Path, Path], config: DataConfig) -> Source:
    """Source files in folders, without tests.

    Every file is a document. They are ordered by a hash of their names, so that the splits are similar, and never cut.
    The splits have about 90 %, 5 % and 5 % of the bytes.

    Args:
        name: name of the corpus.
        roots: for each folder the one that its files' names are relative to.
        config: group `data`.
    """
    named: dict[str, Path] = {}
    for root, base in roots.items():
        for folder, folders, names in os.walk(root):
            folders[:] = [name for name in folders if name not in EXCLUDED_FOLDERS]  # not entered: packages may be many
            files = (Path(folder, name) for name in names if name.endswith(".py") and name != "conftest.py")
            named.update((path.relative_to(base).as_posix(), path) for path in files)
    paths = [named[name] for name in sorted(named, key=lambda name: hashlib.sha256(name.encode()).digest())]
    if not paths:
        raise UserError(f"data={config.name}: there are no source files under {root}; use data=file data.path=…")
    ends = np.cumsum([path.stat().st_size for path in paths])
    cuts = [0, *np.searchsorted(ends, [0.9 * ends[-1], 0.95 * ends[-1]]).tolist(), len(paths)]
    parts = {split: [Part(p) for p in paths[a:b]] for split, a, b in zip(SPLITS, cuts, cuts[1:], strict=False)}
    return Source(name, parts, open_vocabulary(config), documents=True)
