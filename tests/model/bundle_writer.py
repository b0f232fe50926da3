"""Writer of TensorFlow's checkpoint format, with small blocks, and several shards."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from txl_lightning.model.checkpoints.tensorflow import BFLOAT16, MAGIC, TYPES

NUMBERS = {kind: number for number, kind in TYPES.items() if number != BFLOAT16}
CHECKSUM = bytes(4)  # which is not compared


def varint(value: int) -> bytes:
    return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80]) + varint(value >> 7)


def field(number: int, value: int | bytes) -> bytes:
    """Return a field of a message of Protocol Buffers: a number, or bytes with their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def table(entries: list[tuple[bytes, bytes]], per_block: int = 5) -> bytes:
    """Sorted table with a few entries in each block; no key shares its beginning with the key before."""
    content = b""

    def add(entries: list[tuple[bytes, bytes]]) -> bytes:
        nonlocal content
        plain = b"".join(b"\0" + varint(len(key)) + varint(len(value)) + key + value for key, value in entries)
        stored = plain + bytes([0, 0, 0, 0, 1, 0, 0, 0, 0])  # one restart, at the first entry
        handle = varint(len(content)) + varint(len(stored) - 1)
        content += stored + CHECKSUM
        return handle

    groups = [entries[i : i + per_block] for i in range(0, len(entries), per_block)]
    index = [(group[-1][0], add(group)) for group in groups]
    handles = add([]) + add(index)
    return content + handles.ljust(40, b"\0") + MAGIC


def write_bundle(
    prefix: Path, variables: Mapping[str, np.ndarray], n_shards: int = 1, per_block: int = 5, bfloat16: str = ""
) -> None:
    """Write a checkpoint; variables are dealt to the shards in turn, that named `bfloat16` as its upper halves."""
    shards = [b""] * n_shards
    entries = [(b"", field(1, n_shards))]
    for i, (name, value) in enumerate(sorted(variables.items())):
        stored = (value.view("<u4") >> 16).astype("<u2").tobytes() if name == bfloat16 else value.tobytes()
        shape = b"".join(field(2, field(1, size)) for size in value.shape)
        entry = field(1, BFLOAT16 if name == bfloat16 else NUMBERS[value.dtype.str]) + field(2, shape)
        entry += field(3, i % n_shards) + field(4, len(shards[i % n_shards])) + field(5, len(stored))
        entries.append((name.encode(), entry + varint(6 << 3 | 5) + CHECKSUM))
        shards[i % n_shards] += stored
    prefix.parent.mkdir(parents=True, exist_ok=True)
    Path(f"{prefix}.index").write_bytes(table(entries, per_block))
    for shard, content in enumerate(shards):
        Path(f"{prefix}.data-{shard:05d}-of-{n_shards:05d}").write_bytes(content)
