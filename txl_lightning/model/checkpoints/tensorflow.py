"""Checkpoints from the paper's TensorFlow code, read without TensorFlow: variables, and the architecture they imply.

A checkpoint (V2, "tensor bundle") has these files:

    PREFIX.index                 sorted table of LevelDB: "" -> header, variable -> its place
    PREFIX.data-00000-of-00001   little-endian numbers; large checkpoints have several shards

The table's values are Protocol Buffers messages, `BundleHeaderProto` and `BundleEntryProto` in TensorFlow's
`tensor_bundle.proto`. The code reads only the needed fields and compares no checksums.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from txl_lightning.errors import CheckpointError, UserError

SCOPE = "transformer/"
EMBEDDING, SOFTMAX = SCOPE + "adaptive_embed/", SCOPE + "adaptive_softmax/"
INDEX = ".index"
FOOTER, MAGIC = 48, bytes.fromhex("57fb808b247547db")
BFLOAT16 = 14
# TensorFlow's `DataType` number -> NumPy type.
TYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", BFLOAT16: "<u2", 19: "<f2"}
N_SHARDS = 1  # field in BundleHeaderProto
DTYPE, SHAPE, SHARD, OFFSET, SIZE = range(1, 6)  # fields in BundleEntryProto


def model_variables(names: Iterable[str]) -> list[str]:
    """Return the model's variables: in its scope, and not below another one, as `…/Adam` is."""
    known = set(names)
    variables = []
    for name in known:
        is_below = any(name.startswith(f"{other}/") for other in known)
        if name.startswith(SCOPE) and not is_below:
            variables.append(name)
    return variables


def architecture(variables: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the options that names and shapes determine: sizes, cut-offs, `div_val`, `untie_r` and `tie_projs`.

    Where a cluster's softmax has no separate projection, `tie_projs` says that it shares the embedding's.

    Raises:
        CheckpointError: a variable is missing, or has too few or too many axes.
    """
    biases = _shape(variables, f"{SCOPE}r_w_bias", 2, 3)
    first_table = f"{EMBEDDING}cutoff_0/lookup_table"
    n_tables = _count(variables, f"{EMBEDDING}cutoff_{{}}/lookup_table")
    tables = [_shape(variables, f"{EMBEDDING}cutoff_{i}/lookup_table", 2) for i in range(n_tables)]
    if first_table not in variables:
        tables = [_shape(variables, f"{EMBEDDING}lookup_table", 2)]
    widths = [width for _, width in tables]
    ends: list[int] = []
    for i in range(_count(variables, f"{SOFTMAX}cutoff_{{}}/b")):
        (size,) = _shape(variables, f"{SOFTMAX}cutoff_{i}/b", 1)
        ends.append(size + (ends[-1] if ends else 0))
    d_model, _ = _shape(variables, f"{SCOPE}layer_0/rel_attn/qkv/kernel", 2)
    _, d_inner = _shape(variables, f"{SCOPE}layer_0/ff/layer_1/kernel", 2)
    tied = []
    if len(tables) > 1 or widths[0] != d_model:  # there are projections
        for i in range(max(1, len(ends))):
            tied.append(f"{SOFTMAX}cutoff_{i}/proj" not in variables)
    div_val = 1
    if len(widths) > 1:
        div_val = widths[0] // max(1, widths[1])
    return {
        "vocab_size": sum(size for size, _ in tables),
        "n_layer": _count(variables, f"{SCOPE}layer_{{}}/rel_attn/qkv/kernel"),
        "d_model": d_model,
        "d_embed": widths[0],
        "n_head": biases[-2],
        "d_head": biases[-1],
        "d_inner": d_inner,
        "untie_r": len(biases) == 3,
        "cutoffs": ends[:-1],
        "div_val": div_val,
        "tie_projs": tied,
    }


def _shape(variables: Mapping[str, Tensor], name: str, *n_axes: int) -> tuple[int, ...]:
    """Return a variable's shape; its number of axes must be one of these."""
    if name not in variables:
        lacks = f"it has no {name!r}"
        raise CheckpointError(f"not a checkpoint of the TensorFlow Transformer-XL: {lacks}")
    shape = tuple(variables[name].shape)
    if len(shape) not in n_axes:
        raise CheckpointError(f"{name} has shape {list(shape)}, no Transformer-XL has it")
    return shape


def _count(variables: Mapping[str, Tensor], pattern: str) -> int:
    """Return how many variables there are under a pattern's names, from number 0 on."""
    n = 0
    while pattern.format(n) in variables:
        n += 1
    return n


def with_all_projections(
    variables: Mapping[str, Tensor], options: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Add the projections that this project's model has and the TensorFlow one leaves out.

    With `proj_same_dim=false` a cluster as wide as the model has none, which is the identity. Clusters whose softmax
    shares the embedding's projection get a copy, for a model that ties in another pattern.
    """
    full, div_val, width = dict(variables), options["div_val"], options["d_embed"]
    for i, is_shared in enumerate(options["tie_projs"]):
        embedding = f"{EMBEDDING}proj_W" if div_val == 1 else f"{EMBEDDING}cutoff_{i}/proj_W"
        if div_val > 1 and width // div_val**i == options["d_model"]:
            full.setdefault(embedding, torch.eye(width, dtype=next(iter(variables.values())).dtype))
        if is_shared and embedding in full:
            full[f"{SOFTMAX}cutoff_{i}/proj"] = full[embedding]
    return full


def read_variables(prefix: Path) -> dict[str, np.ndarray]:
    """Return the model's variables, bfloat16 as float32.

    Args:
        prefix: checkpoint path without `.index`.

    Raises:
        UserError: a file is missing, cut short, not from a TensorFlow checkpoint, or a type is not supported.
    """
    path = prefix.with_name(f"{prefix.name}{INDEX}")
    variables = {}
    try:
        entries = {key.decode(): _fields(value) for key, value in _table(path.read_bytes())}
        n_shards = _number(entries.pop(""), N_SHARDS)
        for name in model_variables(entries):
            entry = entries[name]
            kind, size = _number(entry, DTYPE), _number(entry, SIZE)
            if kind not in TYPES:
                raise UserError(
                    f"{path}: {name} is of a type that is not supported (DataType {kind})"
                )
            path = prefix.with_name(
                f"{prefix.name}.data-{_number(entry, SHARD):05d}-of-{n_shards:05d}"
            )
            values = np.fromfile(
                path,
                TYPES[kind],
                size // np.dtype(TYPES[kind]).itemsize,
                offset=_number(entry, OFFSET),
            )
            if values.nbytes < size:
                raise UserError(f"{path}: {name} was cut off: the file is too short")
            if kind == BFLOAT16:
                values = (values.astype(np.uint32) << 16).view(np.float32)
            shape = [
                _number(_fields(axis), 1) for axes in entry[SHAPE] for axis in _fields(axes)[2]
            ]
            variables[name] = values.astype(values.dtype.newbyteorder("="), copy=False).reshape(
                shape
            )
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, LookupError) as error:
        raise UserError(
            f"{path}: does not belong to a TensorFlow checkpoint, or was cut short"
        ) from error
    return variables


def _table(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Iterate over keys and values in a LevelDB table, ordered by key."""
    if content[-len(MAGIC) :] != MAGIC:
        raise ValueError("no table of LevelDB")
    footer = BytesIO(content[-FOOTER:])
    for _ in range(2):  # the metadata block is not read
        _varint(footer)
    for _, handle in _entries(content, footer):
        yield from _entries(content, BytesIO(handle))


def _entries(content: bytes, handle: BytesIO) -> Iterator[tuple[bytes, bytes]]:
    """Iterate over a block's entries: each key states how many bytes it shares with the key before."""
    start, size = _varint(handle), _varint(handle)
    n_restarts = int.from_bytes(content[start + size - 4 : start + size], "little")
    end, key = size - 4 * (n_restarts + 1), b""
    reader = BytesIO(content[start : start + size])
    while reader.tell() < end:
        n_shared, n_more, n_value = _varint(reader), _varint(reader), _varint(reader)
        key = key[:n_shared] + reader.read(n_more)
        yield key, reader.read(n_value)


def _varint(reader: BytesIO) -> int:
    """Return the next variable-length number: 7 bits per byte, the lowest first."""
    value = shift = 0
    while True:
        (byte,) = reader.read(1)
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
        shift += 7


def _fields(message: bytes) -> dict[int, list[Any]]:
    """Return a Protocol Buffers message's fields by number: numbers, or bytes for fields with a length."""
    fields: dict[int, list[Any]] = defaultdict(list)
    reader = BytesIO(message)
    while reader.tell() < len(message):
        number, kind = divmod(_varint(reader), 8)
        if kind == 0:
            fields[number].append(_varint(reader))
        elif kind == 2:
            fields[number].append(reader.read(_varint(reader)))
        else:
            fields[number].append(int.from_bytes(reader.read({1: 8, 5: 4}[kind]), "little"))
    return fields


def _number(fields: dict[int, list[Any]], field: int) -> int:
    """Return a field that is a number; Protocol Buffers leave out zeros."""
    return fields[field][-1] if field in fields else 0
