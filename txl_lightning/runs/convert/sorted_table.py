"""Sorted table of LevelDB, the format of a TensorFlow checkpoint's index: keys and values in checked blocks."""

from __future__ import annotations

from collections.abc import Iterator

from txl_lightning.runs.convert.crc32c import crc32c, masked

FOOTER, MAGIC = 48, bytes.fromhex("57fb808b247547db")
TRAILER = 5  # after each block: its compression and its checksum
PLAIN, SNAPPY = 0, 1


class FormatError(Exception):
    """Bytes that are not in the expected format, or changed after they were written."""


def read_table(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Iterate over the keys and values of a table, in the order of the keys.

    Raises:
        FormatError: it is not a table, was cut short, or a checksum does not match.
    """
    if len(content) < FOOTER or content[-len(MAGIC) :] != MAGIC:
        raise FormatError("is not an index of a TensorFlow checkpoint, or was cut short")
    footer = Reader(content[-FOOTER:])
    for _ in range(2):  # the block of metadata, which is not read
        footer.varint()
    for _, handle in _entries(_block(content, footer)):
        yield from _entries(_block(content, Reader(handle)))


class Reader:
    """Position in bytes, which reading moves on; reading beyond the end raises FormatError."""

    def __init__(self, content: bytes) -> None:
        self.content, self.position = content, 0

    @property
    def left(self) -> int:
        """Number of bytes that were not read."""
        return len(self.content) - self.position

    def take(self, n: int) -> bytes:
        """Return the next n bytes."""
        if not 0 <= n <= self.left:
            raise FormatError("is damaged: a length in it is too large")
        self.position += n
        return self.content[self.position - n : self.position]

    def varint(self) -> int:
        """Return the next number of variable length: 7 bits in a byte, the lowest first."""
        value = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise FormatError("is damaged: a number in it is too long")

    def fixed(self, n: int) -> int:
        """Return the next number of n bytes, the lowest first."""
        return int.from_bytes(self.take(n), "little")


def unsnappy(content: bytes) -> bytes:
    """Return what Snappy compressed: literals, and copies of earlier output.

    Raises:
        FormatError: it is not Snappy's format.
    """
    reader, output = Reader(content), bytearray()
    size = reader.varint()
    while reader.left and len(output) <= size:
        tag = reader.take(1)[0]
        kind, length = tag & 3, (tag >> 2) + 1
        if kind == 0:
            output += reader.take(reader.fixed(length - 60) + 1 if length > 60 else length)
            continue
        if kind == 1:
            length, offset = (tag >> 2 & 7) + 4, (tag >> 5 << 8) + reader.fixed(1)
        else:
            offset = reader.fixed(2 if kind == 2 else 4)
        if not 0 < offset <= len(output):
            raise FormatError("is damaged: a compressed block in it refers to nothing")
        for _ in range(length):  # may reach into its own output
            output.append(output[-offset])
    if len(output) != size:
        raise FormatError("is damaged: a compressed block in it has another length than it says")
    return bytes(output)


def _block(content: bytes, handle: Reader) -> bytes:
    """Return a block, decompressed, after its checksum was compared."""
    offset, size = handle.varint(), handle.varint()
    end = offset + size
    if end + TRAILER > len(content):
        raise FormatError("was cut short")
    if masked(crc32c(content[offset : end + 1])) != int.from_bytes(content[end + 1 : end + TRAILER], "little"):
        raise FormatError("is damaged: a block of it has another checksum than the one stored in the file")
    compression = content[end]
    if compression not in (PLAIN, SNAPPY):
        raise FormatError(f"is compressed in an unknown way ({compression})")
    return content[offset:end] if compression == PLAIN else unsnappy(content[offset:end])


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Iterate over the entries of a block: each key has the number of bytes that it shares with the key before."""
    n_restarts = int.from_bytes(block[-4:], "little")
    reader, key = Reader(block[: max(0, len(block) - 4 * (n_restarts + 1))]), b""
    while reader.left:
        n_shared, n_more, n_value = reader.varint(), reader.varint(), reader.varint()
        key = key[:n_shared] + reader.take(n_more)
        yield key, reader.take(n_value)
