"""Token ids of the user, in files of NumPy: memory-mapped arrays, their range, names of ids, ids of a prompt."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from txl_lightning.config.schemas import FileData
from txl_lightning.data.documents import Pattern
from txl_lightning.data.reading import Part, first_bytes, kind_of
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.errors import OptionError, require
from txl_lightning.files import not_special

RAW_DTYPES = ("uint16", "uint32", "int32")
TEXT_OF_IDS = b"0123456789 \t\r\n,;[]-"  # of which numbers in JSON or a text consist
NOT_RAW = (
    ".txt",
    ".json",
    ".jsonl",
    ".csv",
    ".tsv",
    ".pkl",
    ".pickle",
    ".pt",
    ".pth",
    ".npz",
    ".parquet",
    ".safetensors",
)
IDS_AT_ONCE = 1 << 22


def map_ids(path: Path, dtype: str | None = None, option: str = "data.path") -> np.ndarray:
    """Return the ids of a file, memory-mapped.

    Args:
        path: a `.npy` file, or a raw one.
        dtype: type of the ids in a raw file.
        option: option that gave the path, for errors.

    Raises:
        OptionError: the file cannot be read, or has other contents than integers.
    """
    try:
        head = first_bytes(path)
    except OSError as error:
        raise OptionError(option, path, f"cannot be read ({error.strerror})") from error
    is_npy, kind = path.suffix == ".npy" or kind_of(head) == "NumPy", kind_of(head)
    if not is_npy:
        held = "digits of a text" if not head.translate(None, TEXT_OF_IDS) else kind
        allowed = f"must be a .npy file or raw ids, not {held}: save it with numpy.save"
        require((held in ("text", "binary") and path.suffix not in NOT_RAW) or not head, option, path, allowed)
        allowed = f"must be {', '.join(RAW_DTYPES)} for {path.name}: only a .npy file states the type of its ids"
        require(dtype in RAW_DTYPES, "data.dtype", dtype, allowed)
    try:
        ids = np.load(path, mmap_mode="r") if is_npy else np.memmap(path, str(dtype), mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise OptionError(option, path, f"cannot be read ({getattr(error, 'strerror', None) or error})") from error
    found = getattr(ids, "dtype", None)  # none of a .npz file
    require(found is not None and found.kind in "iu", option, path, f"must hold an array of integers, not {found}")
    return ids


def ids_of(part: Part) -> np.ndarray:
    """Return the ids of a part of a file, memory-mapped."""
    return map_ids(part.path, part.format)[part.start : part.stop]


def id_range(parts: Iterable[Part]) -> dict[str, int]:
    """Read all ids once, and return the smallest and the largest."""
    ranges = [(int(ids.min()), int(ids.max())) for part in parts for ids in chunks(ids_of(part))]
    return {"smallest": min(low for low, _ in ranges), "largest": max(high for _, high in ranges)}


def chunks(ids: np.ndarray) -> Iterator[np.ndarray]:
    """Yield an array in pieces that fit into memory."""
    return (ids[start : start + IDS_AT_ONCE] for start in range(0, len(ids), IDS_AT_ONCE))


def id_documents(
    parts: Iterable[Part], vocabulary: Vocabulary, pattern: Pattern | None
) -> Iterator[Iterator[np.ndarray]]:
    """Yield the ids of every document in chunks.

    A document begins with every part, and with every id whose number or name is a match of the pattern.
    """
    named = ((number, text.encode()) for number, name in enumerate(vocabulary.symbols) for text in (name, str(number)))
    first = [number for number, text in named if pattern and pattern.fullmatch(text)]
    for part in parts:
        ids = ids_of(part)
        starts = {0, *(np.flatnonzero(np.isin(ids, first)).tolist() if first else ())}
        yield from (chunks(ids[start:stop]) for start, stop in pairwise([*sorted(starts), len(ids)]))


def vocabulary_of_ids(config: FileData, largest: int) -> Vocabulary:
    """Return the vocabulary of `data.vocab_size` ids, else of `data.names`, else up to the largest id.

    An id without a name is shown as its number.

    Raises:
        OptionError: `data.names` cannot be read, or `data.vocab_size` is not possible.
    """
    names = {} if config.names is None else _names(config.names)
    least = 1 + max(names, default=0)
    size = config.vocab_size if config.vocab_size is not None else least if names else largest + 1
    named = f", for all names of {config.names}," if names else ""
    require(least <= size < 2**31, "data.vocab_size", size, f"must be an integer >= {least}{named} and below 2^31")
    return Vocabulary("ids", tuple(names.get(number, str(number)) for number in range(size)))


def _names(file: str) -> dict[int, str]:
    """Return the names in a text file, one in each line, or in the `vocab.json` of a tokenizer, by id."""
    try:
        path = not_special(file)
        text = path.read_text(encoding="utf-8")
        if path.suffix != ".json":
            return dict(enumerate(text.removesuffix("\n").split("\n")))
        return {int(number): str(name) for name, number in json.loads(text).items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise OptionError("data.names", file, f"must have a name in each line, or be a vocab.json ({error})") from error
