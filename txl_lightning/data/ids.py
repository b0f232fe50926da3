"""Files with token ids: NumPy, Megatron, fairseq and llm.c arrays, raw numbers; their range and their names."""

from __future__ import annotations

import json
import re
import struct
from array import array
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from txl_lightning.config.schemas import FileData
from txl_lightning.data.cache import cached
from txl_lightning.data.sources import UNPACK, Part, Source, chunks, first_bytes
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.errors import OptionError, require, require_memory
from txl_lightning.files import not_special

RAW_DTYPES = ("uint8", "uint16", "uint32", "int32", "int64")
NUMPY = b"\x93NUMPY"
INDEX = b"MMIDIDX\0\0"  # in Megatron and fairseq files
TYPES_OF_INDEX = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}
TYPES_OF_LLM_C = {20240520: "uint16", 20240801: "uint32"}
LLM_C_HEADER = 256 * 4
# First bytes of files that are no raw numbers: of other libraries and archives; numbers in a text, and words.
HEADERS = re.compile(
    rb"LITPKDS|\x89HDF|PK\x03\x04|\x80[\x02-\x05](\x95.{4}\0{4}|\x8a\n)|.{4}\0{4}\{\"|PAR1|ARROW1"
    rb"|\x1f\x8b\x08|BZh\d1AY|\xfd7zXZ|\x28\xb5\x2f\xfd|.{257}ustar|[\d\s,;\[\]-]{16}",
    re.DOTALL,
)
LETTERS = re.compile(HEADERS.pattern + rb"|[\w\s,;\[\]-]{16}")
BYTES_OF_ID = 500  # at least: its name, its row of the embedding with gradient and moments
FEW_IDS = 1 << 16  # a vocabulary of this size needs no further ids


def open_ids(path: Path, name: str, config: FileData) -> Part:
    """Return the part of a file that has ids, and where its documents begin if it says so.

    Args:
        path: a file.
        name: its format: npy, bin (with an index, llm.c's or raw) or raw.
        config: group `data`.

    Raises:
        OptionError: it has no ids, or not as its header says.
    """
    require(
        path.suffix.lower() not in UNPACK,
        "data.path",
        path,
        "must be ids that can be mapped: unpack it",
    )
    head = first_bytes(path)
    if name != "raw" and head.startswith(NUMPY):
        return _numpy(path)
    if name == "bin" and path.with_suffix(".idx").is_file():
        return _indexed(path)
    magic, _, n_ids = struct.unpack_from("<III", head.ljust(12))
    if name == "bin" and magic in TYPES_OF_LLM_C:
        return _part(path, TYPES_OF_LLM_C[magic], n_ids, LLM_C_HEADER)
    return _raw(path, config, head)


def _numpy(path: Path) -> Part:
    ids = np.load(path, mmap_mode="r")
    require(
        ids.ndim == 1 and ids.dtype.kind in "iu",
        "data.path",
        path,
        f"must be integers in one dimension, not {ids.dtype} {ids.shape}: save ids.ravel()",
    )
    dtype = ids.dtype.name if ids.dtype.isnative else ids.dtype.str
    return _part(path, dtype, len(ids), ids.offset)


def _indexed(path: Path) -> Part:
    """Open Megatron or fairseq ids: `.bin` without a header, its `.idx` has type, sequences and documents."""
    index = path.with_suffix(".idx").read_bytes()
    magic, code, n_sequences = struct.unpack_from("<9s8xBQ", index)
    require(
        magic == INDEX and code in TYPES_OF_INDEX,
        "data.path",
        path,
        "must have an index of Megatron or fairseq (--dataset-impl mmap)",
    )
    is_fairseq = len(index) == 26 + 12 * n_sequences  # Megatron's has the number of documents
    at = 26 if is_fairseq else 34
    lengths = np.frombuffer(index, "<i4", n_sequences, at)
    starts = np.append(0, np.cumsum(lengths, dtype=np.int64))
    n_ids = int(starts[-1])
    if not is_fairseq:
        starts = starts[
            np.frombuffer(
                index,
                "<i8",
                -1,
                at + 12 * n_sequences,
            )
        ]
    return _part(path, TYPES_OF_INDEX[code], n_ids, starts=starts)


def _part(path: Path, dtype: str, n_ids: int, offset: int = 0, starts: Any = ()) -> Part:
    require(
        path.stat().st_size == offset + n_ids * np.dtype(dtype).itemsize,
        "data.path",
        path,
        f"must have the {n_ids:,} ids of its header or index, and no more",
    )
    return Part(path, 0, n_ids, format=dtype, offset=offset, starts=starts)


def _raw(path: Path, config: FileData, head: bytes) -> Part:
    require(
        config.dtype in RAW_DTYPES,
        "data.dtype",
        config.dtype,
        f"must be {', '.join(RAW_DTYPES)} for {path.name}: a raw file does not state the type of its ids",
    )
    pattern = HEADERS if config.dtype == "uint8" else LETTERS
    is_chunk = path.with_name("index.json").is_file() or Path(f"{path}.index").is_file()
    sure = "save them with numpy.save, or data.format=raw if they are plain numbers"
    require(
        config.format == "raw" or not (is_chunk or pattern.match(head)),  # of another library
        "data.path",
        path,
        f"begins with {head[:16]!r} or has an index beside it, unlike plain ids: {sure}",
    )
    part = Part(path, format=str(config.dtype))
    part.open()  # it has a whole number of ids
    return part


def encode_ids(value: Any) -> list[array[int]]:
    """Return a record's id sequences as int32: one, or several if its members are lists, as MidiTok writes.

    Raises:
        TypeError, OverflowError: it is no list of ids.
    """
    if not isinstance(value, list):
        raise TypeError(f"must be a list of ids, not {str(value)[:40]}")
    sequences = (
        value
        if value
        and isinstance(
            value[0],
            list,
        )
        else [value]
    )
    return [array("i", sequence) for sequence in sequences]


def vocabulary_of_ids(
    config: FileData, source: Source, checksum: str, given: Vocabulary | None
) -> Vocabulary:
    """Return the vocabulary for ids: the given one, or with as many as `data.vocab_size`, `data.names` or the ids have.

    Raises:
        OptionError: an id is negative or too large, `data.names` cannot be read, `data.vocab_size` is not possible, or
            is not given and the ids are not plausible.
    """
    inputs = (checksum, "range of ids")
    counts = cached(config.cache_dir, inputs, lambda _: _count_ids(source)).description
    require(
        counts["smallest"] >= 0, "data.path", config.path, "must have ids, none of them negative"
    )
    if given is None:
        given = _new_vocabulary(config, counts)
    largest = counts["largest"]
    require(
        largest < len(given),
        "data.path",
        config.path,
        f"has the id {largest}, the vocabulary (data.vocab_size) only {len(given)} ids",
    )
    return given


def _count_ids(source: Source) -> dict[str, int]:
    counts = dict.fromkeys(("number", "zeros", "smallest", "largest"), 0)
    for part in chain.from_iterable(source.parts.values()):
        for ids in chunks(part.open()[0]):
            counts["number"] += len(ids)
            counts["zeros"] += int(np.count_nonzero(ids == 0))
            counts["smallest"] = min(
                counts["smallest"],
                int(ids.min()),
            )
            counts["largest"] = max(
                counts["largest"],
                int(ids.max()),
            )
    return counts


def _new_vocabulary(config: FileData, counts: dict[str, int]) -> Vocabulary:
    names: dict[int, str] = {}
    if config.names is not None:
        names = names_of_ids(config.names)
    least = 1 + max(names, default=0)
    size = config.vocab_size
    if size is None:
        is_near = counts["largest"] < max(counts["number"], FEW_IDS)
        require(
            is_near and 2 * counts["zeros"] < counts["number"],
            "data.vocab_size",
            None,
            f"must be given, or the type of the ids is wrong: {counts}",  # halves or pairs of ids
        )
        size = least if names else counts["largest"] + 1
    require(
        size >= least, "data.vocab_size", size, f"must be an integer >= {least}, for all data.names"
    )
    require_memory(BYTES_OF_ID * size, "data.vocab_size", size)
    symbols = [
        names.get(
            number,
            str(number),
        )
        for number in range(size)
    ]
    return Vocabulary("ids", tuple(symbols))


def names_of_ids(file: str) -> dict[int, str]:
    """Return the names of ids in a file: `tokenizer.json`, `vocab.json`, or a list with one name per line.

    Raises:
        OptionError: it cannot be read.
    """
    try:
        text = not_special(file).read_text(encoding="utf-8-sig")
        if not file.endswith(".json"):
            return dict(enumerate(text.splitlines()))
        numbers = json.loads(text)
        if isinstance(numbers.get("model"), dict):
            numbers = Tokenizer.from_str(text).get_vocab()
        return {int(number): name for name, number in numbers.items()}
    except Exception as error:  # tokenizers raises a plain Exception
        allowed = f"must have a name in each line, or be vocab.json or tokenizer.json ({error})"
        raise OptionError("data.names", file, allowed) from error
