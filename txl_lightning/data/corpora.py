"""Corpora: text in, memory-mapped tokens of three splits and their vocabulary out."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from txl_lightning.config import DataConfig
from txl_lightning.data.cache import cache_key, cached
from txl_lightning.data.vocabulary import Vocabulary, decode_text
from txl_lightning.errors import OptionError, UserError, require

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")
NOT_TEXT_OF_THE_LIBRARY = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


@dataclass(frozen=True)
class Corpus:
    """Encoded tokens of three splits.

    Args:
        name: what was read, as reports name it.
        splits: token numbers by split, memory-mapped.
        vocabulary: their symbols.
        checksum: SHA-256 of the bytes that were read.
    """

    name: str
    splits: dict[str, np.ndarray]
    vocabulary: Vocabulary
    checksum: str


@dataclass(frozen=True)
class _Source:
    """Bytes of three splits before encoding, and where they came from."""

    name: str
    contents: Mapping[Split, bytes]


def load_corpus(config: DataConfig) -> Corpus:
    """Read, split, encode and cache the corpus that `config` names.

    Raises:
        OptionError, UserError: unknown corpus or level, missing or empty file, text that is not UTF-8.
    """
    require(config.name in CORPORA, "data", config.name, f"must be one of {', '.join(CORPORA)}")
    require(config.level in ("byte", "char"), "data.level", config.level, "must be byte or char")
    source = CORPORA[config.name](config)
    digest = hashlib.sha256()
    for split in SPLITS:
        digest.update(len(source.contents[split]).to_bytes(8, "little") + source.contents[split])
    checksum = digest.hexdigest()

    def prepare() -> tuple[dict[str, np.ndarray], dict[str, object]]:
        vocabulary = Vocabulary("byte")
        if config.level == "char":
            vocabulary = Vocabulary.of_characters(decode_text(source.contents["train"]))
        return {s: vocabulary.encode(source.contents[s]) for s in SPLITS}, {"vocabulary": vocabulary.state_dict()}

    directory = Path(config.cache_dir).expanduser()
    try:
        arrays, description = cached(directory, cache_key(checksum, config.level), prepare)
    except UserError as error:
        raise UserError(f"{source.name}: {error}") from error
    return Corpus(source.name, arrays, Vocabulary.from_state_dict(description["vocabulary"]), checksum)


def _python_stdlib(config: DataConfig) -> _Source:
    """The source files of the running Python's standard library, without its tests.

    Files are ordered by a hash of their names, so that the splits are alike, and never cut: 90 % of the
    bytes train, 5 % validate, 5 % test.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = [p for p in root.rglob("*.py") if not NOT_TEXT_OF_THE_LIBRARY & set(p.relative_to(root).parts)]
    paths.sort(key=lambda path: hashlib.sha256(path.relative_to(root).as_posix().encode()).digest())
    files = [path.read_bytes() for path in paths]
    ends = np.cumsum([len(file) for file in files])
    if not files or ends[-1] == 0:
        raise UserError(f"data=python-stdlib: this Python has no source files under {root}; use data=file data.path=…")
    cuts = [0, *np.searchsorted(ends, [0.9 * ends[-1], 0.95 * ends[-1]]).tolist(), len(files)]
    contents = {split: b"".join(files[a:b]) for split, a, b in zip(SPLITS, cuts, cuts[1:], strict=False)}
    return _Source(
        f"python-stdlib {sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}", contents
    )


def _file(config: DataConfig) -> _Source:
    """One file, cut into consecutive splits by `data.fractions`."""
    if not config.path:
        raise OptionError("data.path", config.path, "must be a file for data=file (data.path=PATH)")
    path = Path(config.path).expanduser()
    fractions = list(config.fractions)
    good = len(fractions) == 3 and min(fractions) > 0 and abs(sum(fractions) - 1) < 1e-6
    require(good, "data.fractions", fractions, "must be three positive numbers (train, valid, test) with sum 1")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise OptionError("data.path", config.path, f"cannot be read ({error.strerror})") from error
    require(bool(content), "data.path", config.path, "is an empty file")
    cuts = [0, int(len(content) * fractions[0]), int(len(content) * (fractions[0] + fractions[1])), len(content)]
    if config.level == "char":
        cuts = [_start_of_character(content, cut) for cut in cuts]
    return _Source(path.name, {split: content[a:b] for split, a, b in zip(SPLITS, cuts, cuts[1:], strict=False)})


def _start_of_character(content: bytes, cut: int) -> int:
    """The first position from `cut` on that is not inside a UTF-8 character."""
    while cut < len(content) and content[cut] & 0xC0 == 0x80:
        cut += 1
    return cut


CORPORA: dict[str, Callable[[DataConfig], _Source]] = {"python-stdlib": _python_stdlib, "file": _file}
