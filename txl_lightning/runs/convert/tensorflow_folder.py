"""Files of a model of the paper's TensorFlow code: its checkpoint, flags and vocabulary.

The published models lie in two folders, `model/` with the checkpoint and `data/` with `corpus-info.json` and
`cache.pkl`. The source may be the folder of both, that of the checkpoint, or the checkpoint's path.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.data.vocabulary import UNKNOWN, Level, Vocabulary
from txl_lightning.errors import OptionError, UserError
from txl_lightning.model.checkpoints.tensorflow import ignored_variables
from txl_lightning.runs.convert.tensor_bundle import TensorBundle

STATE, INDEX = "checkpoint", ".index"
FLAGS, CORPUS = "config.json", "corpus-info.json"
VOCABULARIES = ("vocab", "vocab.txt", "1b_word_vocab.txt")
PICKLE = "cache.pkl"
FIRST_WORD = re.compile(r"^[ \t]*([^ \t]*)")  # a word may contain white space of Unicode, as in Python 2


def find_checkpoint(source: str) -> Path:
    """Return the path of a checkpoint without `.index`: the one that the file `checkpoint` names, else the newest.

    Raises:
        OptionError: there is none.
    """
    path = Path(source)
    if path.suffix == INDEX and path.is_file():
        return path.with_suffix("")
    if path.with_name(path.name + INDEX).is_file():
        return path
    for folder in (path, path / "model"):
        if (folder / STATE).is_file():
            text = (folder / STATE).read_text(errors="replace")
            named = re.search(r'^model_checkpoint_path: "(?:.*[/\\])?(.+)"', text, re.MULTILINE)
            prefix = folder / (named[1] if named else "")
            if not named or not prefix.with_name(prefix.name + INDEX).is_file():
                problem = f"names {prefix.name}, but there is no {prefix.name}{INDEX}" if named else "names none"
                raise OptionError("source", source, f"its file {STATE} {problem}")
            return prefix
        if found := sorted(folder.glob(f"*{INDEX}"), key=_step):
            return found[-1].with_suffix("")
    problem = f"has no checkpoint of TensorFlow (NAME{INDEX} and NAME.data-…)" if path.is_dir() else "no such file"
    raise OptionError("source", source, problem)


def read_variables(prefix: Path) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return the variables of the model, and the names of those that were left out: the optimizer's.

    Raises:
        UserError: a file is missing, damaged or not of a TensorFlow checkpoint.
    """
    bundle = TensorBundle(prefix)
    ignored = ignored_variables(bundle.variables)
    return {name: bundle.read(name) for name in bundle.variables if name not in ignored}, ignored


def read_flags(prefix: Path) -> dict[str, Any]:
    """Return the flags in `config.json` beside the checkpoint, if there is one, and the sizes in `corpus-info.json`.

    Raises:
        UserError: a file is not a dictionary in JSON, or both have another vocabulary size.
    """
    path = prefix.with_name(FLAGS)
    flags = read_json(path) if path.is_file() else {}
    if (corpus := _beside(prefix, CORPUS)) is not None:
        info = read_json(corpus)
        size = info.get("vocab_size")
        if size is not None and flags.setdefault("n_token", size) != size:
            raise UserError(f"{corpus}: vocab_size={size}, but {FLAGS} has n_token={flags['n_token']}")
        flags.setdefault("cutoffs", info.get("cutoffs"))
    return flags


def read_json(path: Path) -> dict[str, Any]:
    """Return the dictionary that a file of JSON holds.

    Raises:
        OptionError: the file holds something else.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise OptionError("source", path.parent, f"its {path.name} must be JSON ({error})") from error
    if not isinstance(content, dict):
        raise OptionError("source", path.parent, f"its {path.name} must be a dictionary of options")
    return content


def find_vocabulary(prefix: Path) -> Path | None:
    """Return the text file with the symbols of a published model, or None if the corpus has to give them.

    Raises:
        UserError: they are only in a pickle, which is never opened.
    """
    found = [path for name in VOCABULARIES if (path := _beside(prefix, name)) is not None]
    if found:
        return found[0]
    if (pickle := _beside(prefix, PICKLE)) is not None:
        raise UserError(
            f"{pickle}: is never unpickled, since that runs code of the file; write its symbols to "
            f"{pickle.with_name('vocab')}, one per line (docs/published-models.md says how), or choose "
            "vocabulary=corpus for those of data=…"
        )
    return None


def read_vocabulary(path: str | Path, level: Level) -> Vocabulary:
    """Read symbols in the order of their numbers: the first word of every line, each symbol once.

    Bytes are written as numbers and the space as `_`, as the paper's code prepares enwik8 and text8.

    Raises:
        OptionError: the file cannot be read, or a line is not a symbol of the level.
    """
    try:
        lines = Path(path).read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError("vocabulary", path, f"cannot be read as UTF-8 text ({error})") from error
    symbols: dict[str, None] = {}
    for number, line in enumerate(lines, start=1):
        if symbol := line if level == "char" and len(line) == 1 else FIRST_WORD.findall(line)[0]:
            if level == "byte" and not (symbol.isascii() and symbol.isdigit() and int(symbol) < 256):
                raise OptionError("vocabulary", path, f"line {number}: {symbol!r} is not a byte, 0 … 255 (data.level)")
            if level == "char" and len(symbol) > 1 and symbol != UNKNOWN:
                raise OptionError("vocabulary", path, f"line {number}: {symbol!r} is not a character (data.level)")
            symbols[chr(int(symbol)) if level == "byte" else symbol] = None
    if level == "char" and " " not in symbols:
        return Vocabulary(level, tuple(" " if symbol == "_" else symbol for symbol in symbols))
    return Vocabulary(level, tuple(symbols))


def _beside(prefix: Path, name: str) -> Path | None:
    """Return a file of that name in the folder of the checkpoint, or in `data/` in it or beside it."""
    folders = (prefix.parent, prefix.parent / "data", prefix.parent.absolute().parent / "data")
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def _step(index: Path) -> tuple[int, float]:
    """Return the order of checkpoints in a folder: by the step in the name, then by time."""
    step = re.search(r"-(\d+)$", index.stem)
    return int(step[1]) if step else -1, index.stat().st_mtime
