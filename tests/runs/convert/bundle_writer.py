"""Writer of TensorFlow's checkpoint format, with small blocks, and several shards."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

FLOAT32, BFLOAT16 = 1, 14
TYPES = {"f4": 1, "f8": 2, "i4": 3, "u1": 4, "i2": 5, "i1": 6, "i8": 9, "b1": 10, "u2": 17, "f2": 19}


def slow_crc32c(content: bytes) -> int:
    """CRC-32C, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def mask(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def varint(value: int) -> bytes:
    digits = bytearray()
    while value >= 0x80:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def message(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def block(entries: list[tuple[bytes, bytes]], restart_every: int = 3) -> bytes:
    """Entries whose keys share their beginnings with the key before, except at restarts."""
    content, restarts, before = b"", [], b""
    for i, (key, value) in enumerate(entries):
        shared = 0
        if i % restart_every == 0:
            restarts.append(len(content))
        else:
            while shared < min(len(key), len(before)) and key[shared] == before[shared]:
                shared += 1
        content += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        before = key
    numbers = [*(restarts or [0]), len(restarts) or 1]
    return content + b"".join(number.to_bytes(4, "little") for number in numbers)


def table(entries: list[tuple[bytes, bytes]], per_block: int, compression: int = 0) -> bytes:
    """Sorted table with a few entries in each block."""
    content = b""

    def add(plain: bytes) -> bytes:
        nonlocal content
        stored = plain + bytes([compression])
        handle = varint(len(content)) + varint(len(stored) - 1)
        content += stored + mask(slow_crc32c(stored)).to_bytes(4, "little")
        return handle

    groups = [entries[i : i + per_block] for i in range(0, len(entries), per_block)]
    index = [(group[-1][0], add(block(group))) for group in groups]
    handles = add(block([])) + add(block(index))
    return content + handles.ljust(40, b"\0") + bytes.fromhex("57fb808b247547db")


def write_bundle(
    prefix: Path,
    variables: Mapping[str, np.ndarray],
    n_shards: int = 1,
    per_block: int = 5,
    bfloat16: tuple[str, ...] = (),
    header: bytes = b"",
) -> None:
    """Write a checkpoint; variables are dealt to the shards in turn, those in `bfloat16` as their upper halves."""
    shards = [b""] * n_shards
    entries = [(b"", header or number(1, n_shards))]
    for i, (name, value) in enumerate(sorted(variables.items())):
        dtype = BFLOAT16 if name in bfloat16 else TYPES[value.dtype.str[1:]]
        stored = (value.view("<u4") >> 16).astype("<u2").tobytes() if name in bfloat16 else value.tobytes()
        shape = b"".join(message(2, number(1, size)) for size in value.shape)
        shard, checksum = i % n_shards, mask(slow_crc32c(stored))
        place = number(3, shard) + number(4, len(shards[shard])) + number(5, len(stored))
        entry = number(1, dtype) + message(2, shape) + place + varint(6 << 3 | 5) + checksum.to_bytes(4, "little")
        entries.append((name.encode(), entry))
        shards[shard] += stored
    prefix.parent.mkdir(parents=True, exist_ok=True)
    Path(f"{prefix}.index").write_bytes(table(entries, per_block))
    for shard, content in enumerate(shards):
        Path(f"{prefix}.data-{shard:05d}-of-{n_shards:05d}").write_bytes(content)
