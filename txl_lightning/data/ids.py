"""Files of token ids: arrays of NumPy, Megatron, fairseq and llm.c, raw numbers; their range and their names."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.config.schemas import FileData
from txl_lightning.data.cache import cache_key, cached
from txl_lightning.data.sources import UNPACK, Part, Source
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.errors import OptionError, require, require_memory
from txl_lightning.files import expand, not_special

RAW_DTYPES = ("uint8", "uint16", "uint32", "int32", "int64")
NUMPY = b"\x93NUMPY"
INDEX = b"MMIDIDX\0\0"  # of Megatron and fairseq
TYPES_OF_INDEX = {
    1: "uint8",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    8: "uint16",
    9: "uint32",
    10: "uint64",
}
TYPES_OF_LLM_C = {20240520: "uint16", 20240801: "uint32"}
LLM_C_HEADER = 256 * 4
# First bytes of files that are no raw numbers.
KNOWN_HEADERS = {
    b"LITPKDS": "a PackedDataset of lit-gpt",
    b"\x89HDF": "HDF5",
    b"PK\x03\x04": "an archive",
}
PUNCTUATION = b" \t\r\n,;[]-"  # between numbers in a text
IDS_AT_ONCE = 1 << 22
BYTES_OF_ID = 500  # at least: its name, its row of the embedding with gradient and moments
FEW_IDS = 1 << 16  # a vocabulary of this size needs no further ids
FEW_DISTINCT = 20  # times as many ids as occur
MOST_COUNTED = 1 << 24  # ids that are counted one by one


def open_ids(path: Path, config: FileData, name: str) -> Part:
    """Return the part of a file that has ids, memory-mapped, and where its documents begin if it says so.

    Args:
        path: a file.
        config: group `data`.
        name: its format: npy, bin (with an index, llm.c's or raw) or raw.

    Raises:
        OptionError: it has no ids, or not as its header says.
    """
    require(
        path.suffix.lower() not in UNPACK,
        "data.path",
        path,
        "must be ids that can be mapped: unpack it",
    )
    with path.open("rb") as file:
        head = file.read(64)
    if name != "raw" and head.startswith(NUMPY):
        return _numpy(path)
    if name == "bin" and path.with_suffix(".idx").is_file():
        return _indexed(path)
    if name == "bin" and int.from_bytes(head[:4], "little") in TYPES_OF_LLM_C:
        return _llm_c(path)
    return _raw(path, config, head)


def _numpy(path: Path) -> Part:
    try:
        ids = np.load(path, mmap_mode="r")
    except ValueError as error:
        raise OptionError("data.path", path, f"cannot be read ({error})") from error
    dtype = ids.dtype
    require(dtype.kind in "iu", "data.path", path, f"must hold an array of integers, not {dtype}")
    shape = f"must have one dimension, not the shape {ids.shape}: save ids.ravel()"
    require(ids.ndim == 1, "data.path", path, shape)
    is_whole = ids.offset + ids.nbytes == path.stat().st_size
    require(is_whole, "data.path", path, "must have one array, and no more")
    return Part(
        path, 0, len(ids), format=dtype.name if dtype.isnative else dtype.str, offset=ids.offset
    )


def _llm_c(path: Path) -> Part:
    header = np.fromfile(path, "<i4", 3).tolist()
    require(len(header) == 3, "data.path", path, "must have the header of llm.c, 1,024 bytes")
    magic, version, n_ids = header
    require(
        version in (1, 7), "data.path", path, f"must be of version 1 or 7 of llm.c, not {version}"
    )
    dtype = np.dtype(TYPES_OF_LLM_C[magic])
    n_stored = (path.stat().st_size - LLM_C_HEADER) // dtype.itemsize
    require(
        n_ids == n_stored,
        "data.path",
        path,
        f"must have the {n_ids:,} ids of its header; it has {n_stored:,}",
    )
    return Part(path, 0, n_ids, format=dtype.name, offset=LLM_C_HEADER)


def _indexed(path: Path) -> Part:
    """Map the ids of Megatron or fairseq: `.bin` without a header, beside an index of type, sequences and documents."""
    index = path.with_suffix(".idx").read_bytes()
    allowed = "must have an index of Megatron or fairseq: fairseq-preprocess --dataset-impl mmap"
    require(index.startswith(INDEX) and len(index) >= 26, "data.path", path, allowed)
    code, n = struct.unpack_from("<BQ", index, 17)
    require(
        code in TYPES_OF_INDEX,
        "data.path",
        path,
        f"must have integers, not the type {code} of its .idx",
    )
    dtype = np.dtype(TYPES_OF_INDEX[code])
    is_fairseq = len(index) == 26 + 12 * n  # without the number of documents
    at = 26 if is_fairseq else 34
    size = path.stat().st_size
    allowed = "must have the sequences of its .idx one after the other, and no more"
    require(len(index) >= at + 12 * n, "data.path", path, allowed)
    lengths = np.frombuffer(index, "<i4", n, at)
    pointers = np.frombuffer(index, "<i8", n, at + 4 * n)
    ends = np.cumsum(lengths, dtype=np.int64)
    starts = np.append(0, ends)
    is_whole = (
        np.array_equal(pointers, starts[:-1] * dtype.itemsize)
        and size == starts[-1] * dtype.itemsize
    )
    require(is_whole, "data.path", path, allowed)
    if not is_fairseq:
        (n_documents,) = struct.unpack_from("<Q", index, 26)
        starts = starts[np.frombuffer(index, "<i8", n_documents, at + 12 * n)]
    return Part(path, 0, size // dtype.itemsize, format=dtype.name, starts=starts)


def _raw(path: Path, config: FileData, head: bytes) -> Part:
    for first, name in KNOWN_HEADERS.items():
        allowed = f"must be ids, not {name}: save them with numpy.save"
        require(not head.startswith(first), "data.path", path, allowed)
    types = f"must be {', '.join(RAW_DTYPES)} for {path.name}: a raw file does not state the type of its ids"
    require(config.dtype in RAW_DTYPES, "data.dtype", config.dtype, types)
    dtype = np.dtype(str(config.dtype))
    if config.format != "raw":
        sure = "save them with numpy.save, or data.format=raw if they are plain numbers"
        for index in (path.with_name("index.json"), path.with_name(f"{path.name}.index")):
            allowed = f"has {index.name} beside it, as chunks of another library: {sure}"
            require(not index.is_file(), "data.path", path, allowed)
        letters = head[:16].translate(None, PUNCTUATION)
        is_text = letters.isdigit() if dtype.itemsize == 1 else letters.isalnum()
        require(
            not is_text,
            "data.path",
            path,
            f"begins with {head[:16]!r}, which are no plausible ids: {sure}",
        )
    size = path.stat().st_size
    whole = f"must have a whole number of {dtype.name}, not {size:,} bytes"
    require(size % dtype.itemsize == 0, "data.path", path, whole)
    return Part(path, format=dtype.name)


def encode_ids(value: Any) -> list[bytes]:
    """Return the sequences of ids of a record as int32: one, or several if its members are lists, as MidiTok writes.

    Raises:
        TypeError: it is no list of ids.
    """
    is_nested = isinstance(value, list) and len(value) > 0 and isinstance(value[0], list)
    encoded = []
    for sequence in value if is_nested else [value]:
        ids = np.asarray(sequence)
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise TypeError(f"must be a list of ids, not {str(sequence)[:40]}")
        if ids.size and not 0 <= ids.min() <= ids.max() < 2**31:
            raise TypeError(f"must be ids from 0 to 2^31 - 1, not {ids.min()} to {ids.max()}")
        encoded.append(ids.astype(np.int32).tobytes())
    return encoded


def chunks_of_ids(ids: np.ndarray) -> Iterator[np.ndarray]:
    """Yield an array in pieces that fit into memory."""
    for start in range(0, len(ids), IDS_AT_ONCE):
        yield ids[start : start + IDS_AT_ONCE]


def vocabulary_of_ids(
    config: FileData, source: Source, checksum: str, given: Vocabulary | None
) -> Vocabulary:
    """Return the given vocabulary, or one of `data.vocab_size` ids, else of `data.names`, else up to the largest id.

    An id without a name is shown as its number. The range of the ids is cached.

    Raises:
        OptionError: an id is negative or too large, `data.names` cannot be read, `data.vocab_size` is not possible, or
            is not given and the ids are not plausible.
    """
    key = cache_key(checksum, "range of ids")
    _, counts = cached(expand(config.cache_dir), key, lambda _: _count_ids(source))
    largest = counts["largest"]
    require(
        counts["smallest"] >= 0,
        "data.path",
        config.path,
        f"has the negative id {counts['smallest']}",
    )
    if given is None:
        given = _vocabulary_up_to(config, counts)
    allowed = f"has the id {largest}, the vocabulary (data.vocab_size) only ids from 0 to {len(given) - 1}"
    require(largest < len(given), "data.path", config.path, allowed)
    return given


def _count_ids(source: Source) -> dict[str, int]:
    arrays = [part.ids() for parts in source.parts.values() for part in parts]
    number = sum(len(array) for array in arrays)
    smallest = min(int(chunk.min()) for array in arrays for chunk in chunks_of_ids(array))
    largest = max(int(chunk.max()) for array in arrays for chunk in chunks_of_ids(array))
    counts = {"number": number, "smallest": smallest, "largest": largest, "zeros": 0, "distinct": 0}
    if smallest >= 0 and largest < MOST_COUNTED:
        counts_V = np.zeros(largest + 1, np.int64)
        for array in arrays:
            for chunk in chunks_of_ids(array):
                counts_V += np.bincount(chunk, minlength=largest + 1)
        counts.update(zeros=int(counts_V[0]), distinct=int(np.count_nonzero(counts_V)))
    return counts


def _vocabulary_up_to(config: FileData, counts: dict[str, int]) -> Vocabulary:
    largest = counts["largest"]
    size = config.vocab_size
    if size is None:
        _require_plausible(counts)
    names: dict[int, str] = {}
    least = 1
    allowed = "must be an integer >= 1 and below 2^31"
    if config.names is not None:
        names = names_of_ids(config.names)
        least += max(names)
        allowed = f"must be an integer >= {least}, for all names of {config.names}, and below 2^31"
    if size is None:
        size = least if names else largest + 1
    require(least <= size < 2**31, "data.vocab_size", size, allowed)
    require_memory(BYTES_OF_ID * size, "data.vocab_size", size)
    symbols = [names.get(number, str(number)) for number in range(size)]
    return Vocabulary("ids", tuple(symbols))


def _require_plausible(counts: dict[str, int]) -> None:
    """Refuse ids that may be halves or pairs of others."""
    number, largest, zeros, distinct = (
        counts[name] for name in ("number", "largest", "zeros", "distinct")
    )
    if largest >= max(number, FEW_IDS):
        reason = f"the largest of {number:,} ids is {largest:,}"
    elif 2 * zeros >= number > zeros:
        reason = f"{zeros:,} of {number:,} ids are 0"
    elif 0 < FEW_DISTINCT * distinct < largest:
        reason = f"{distinct:,} ids occur, and the largest is {largest:,}"
    else:
        return
    raise OptionError(
        "data.vocab_size", None, f"must be given: {reason}; is the type of the ids right?"
    )


def names_of_ids(file: str) -> dict[int, str]:
    """Return the names of ids in a file: `vocab.json`, `tokenizer.json`, or a list with one name in each line.

    Raises:
        OptionError: it cannot be read.
    """
    try:
        path = not_special(file)
        text = path.read_bytes().decode("utf-8-sig")
        if path.suffix == ".json":
            names = _names_in_json(json.loads(text))
        else:
            names = dict(enumerate(text.replace("\r\n", "\n").removesuffix("\n").split("\n")))
    except (OSError, ValueError, AttributeError, TypeError, LookupError) as error:
        allowed = f"must have a name in each line, or be vocab.json or tokenizer.json ({error})"
        raise OptionError("data.names", file, allowed) from error
    return names


def _names_in_json(content: Any) -> dict[int, str]:
    if isinstance(content, list):
        return {number: str(name) for number, name in enumerate(content)}
    numbers = content
    if isinstance(content.get("model"), dict):  # tokenizer.json; Unigram's has pairs
        numbers = content["model"]["vocab"]
        if isinstance(numbers, list):
            numbers = {token: number for number, (token, _) in enumerate(numbers)}
        for token in content.get("added_tokens", ()):
            numbers[token["content"]] = token["id"]
    if not numbers or not all(isinstance(number, int) for number in numbers.values()):
        raise ValueError("its values are no ids")
    return {number: str(name) for name, number in numbers.items()}
