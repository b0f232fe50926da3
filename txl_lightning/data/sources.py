"""Sources of text: description of a corpus before it is encoded, Python source that is installed, files of the user."""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.config.schemas import DataConfig
from txl_lightning.data import vocabulary
from txl_lightning.data.ids import map_ids
from txl_lightning.data.reading import SPLITS, Alignment, Part, Parts, cut_into_splits, cut_parts
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.errors import OptionError, UserError, notice, require

PACKAGES = {"sympy": "1.14.0", "networkx": "3.6.1"}  # as in `constraints.txt`; torch needs both
PACKAGES_CHECKSUM = "9cf24e9700e0a49d0fd0ec4c3e620ab30311cf772b9846100a968ff394086b9f"
EXCLUDED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}

MakeVocabulary = Callable[[Iterable[bytes]], Vocabulary]
OPEN_VOCABULARY: dict[str, MakeVocabulary] = {
    "byte": vocabulary.all_bytes,
    "char": vocabulary.characters_and_unknown,
    "word": vocabulary.words,
    "bpe": vocabulary.all_bytes,  # the alphabet; `load_corpus` trains or reads the tokenizer
    "ids": vocabulary.all_bytes,  # not used: `load_corpus` reads names or the largest id
}
ALIGNMENT: dict[str, Alignment] = {"byte": "byte", "char": "char", "word": "line", "bpe": "char"}


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
    return Source(name, parts, OPEN_VOCABULARY[config.level], documents=True)


def file(config: DataConfig) -> Source:
    """One file, several, or all files of a folder, cut into consecutive splits by `data.fractions`.

    Every file is a document. Documents follow each other in the order of their paths, and nothing is put between them.
    A cut is never inside a character or, for words, a line; a document that a cut goes through continues as the first
    one of the next split. In a vocabulary with `<S>`, that of a model of lm1b, every line is a sentence as in lm1b.

    At level ids the files hold token ids. Those of a folder are its `.npy` files, and a list has a path for each split.
    """
    fractions = list(config.fractions)
    good = len(fractions) == 3 and min(fractions) > 0 and abs(sum(fractions) - 1) < 1e-6
    require(good, "data.fractions", fractions, "must be three positive numbers (train, valid, test) with sum 1")
    if config.level == "ids":
        return _ids(config, fractions)
    name, paths = _documents(config.path)
    allowed = f"must be ids for {config.path}: text does not stand in a .npy file"
    require(paths[0].suffix != ".npy", "data.level", config.level, allowed)
    parts = cut_into_splits(paths, fractions, ALIGNMENT[config.level])
    closed = config.sentence_marks == "both"
    return Source(name, parts, OPEN_VOCABULARY[config.level], closed_sentences=closed, documents=True)


def _ids(config: DataConfig, fractions: list[float]) -> Source:
    """Token ids: one path, cut into splits, or one for each. Every array is a document."""
    paths = config.path if isinstance(config.path, list) else [config.path]
    allowed = "must be a .npy or .bin file, a folder of .npy files, or a list of three: train, valid, test"
    require(len(paths) in (1, len(SPLITS)), "data.path", config.path, allowed)
    names: list[str] = []
    splits: list[list[Part]] = []
    sizes: list[int] = []
    for path in paths:
        name, files = _documents(path)
        parts: list[Part] = []
        for file in files:
            if file.suffix == ".npy" or len(files) == 1:
                ids = map_ids(file, config.dtype)  # closed at the next one: a process has few open files
                shape = f"must have one dimension, not the shape {ids.shape}: save ids.ravel()"
                require(ids.ndim == 1, "data.path", file, shape)
                parts += [Part(file, format=ids.dtype.name)] if len(ids) else []
                sizes += [len(ids)] if len(ids) else []
        require(bool(parts), "data.path", path, "must have ids: it is empty, or a folder without .npy files")
        names.append(name)
        splits.append(parts)
    if len(paths) == 1:
        return Source(names[0], cut_parts(splits[0], sizes, fractions), OPEN_VOCABULARY["ids"], documents=True)
    by_split = dict(zip(SPLITS, splits, strict=True))
    return Source(f"{names[0]} and 2 more", by_split, OPEN_VOCABULARY["ids"], documents=True)


def _documents(given: Any) -> tuple[str, list[Path]]:
    """Return a name for the files of `data.path`, and the files that are not empty, sorted by path.

    Of a folder these are all files in it and its folders, without those whose name begins with a dot.
    """
    listed = [given] if isinstance(given, str) else list(given) if isinstance(given, list) else []
    allowed = "must be a file, a folder or a list of files for data=file (data.path=PATH)"
    require(bool(listed) and all(isinstance(path, str) and path for path in listed), "data.path", given, allowed)
    roots = [Path(path).expanduser() for path in listed]
    paths = {path for root in roots for path in (_visible_files(root) if root.is_dir() else [root])}
    try:
        filled = [path for path in sorted(paths) if path.stat().st_size]
    except OSError as error:
        which = f"{error.filename} " if len(paths) > 1 else ""
        raise OptionError("data.path", given, f"{which}cannot be read ({error.strerror})") from error
    require(bool(filled), "data.path", given, "must not be empty")
    others = f" and {len(filled) - 1} more" if len(roots) > 1 and len(filled) > 1 else ""
    return (roots[0].name or roots[0].resolve().name) + others, filled


def _visible_files(root: Path) -> list[Path]:
    files = (path for path in root.rglob("*") if path.is_file())
    return [path for path in files if "/." not in f"/{path.relative_to(root).as_posix()}"]
