"""CRC-32C (Castagnoli), many parts of the data at a time, and the mask that TensorFlow stores it under.

A CRC without its first and last inversion is linear over GF(2): the state after some bytes is the state after the
same bytes from zero, plus the first state moved on by as many zero bytes. So the parts are read side by side, each
from zero, and joined afterwards.
"""

from __future__ import annotations

from functools import cache

import numpy as np

POLYNOMIAL = 0x82F63B78
ONES = 0xFFFFFFFF
N_PARTS = 1024
CHUNK = 1 << 22  # bytes whose parts are read side by side: they stay in the CPU's cache
SHORT = 1 << 16  # bytes that a plain loop reads as fast


def crc32c(data: bytes | memoryview | np.ndarray) -> int:
    """Return the CRC-32C of bytes (RFC 3720, appendix B.4)."""
    values = np.frombuffer(data, np.uint8)
    state, start = ONES, 0
    while start < len(values):
        stop = start + ((len(values) - start) % CHUNK or CHUNK)
        part = values[start:stop]
        state = _read_bytes(state, part) if len(part) < SHORT else _read_parts(state, part)
        start = stop
    return state ^ ONES


def masked(crc: int) -> int:
    """Return the checksum as TensorFlow stores it: rotated by 15 bits, plus a constant."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & ONES


def _read_bytes(state: int, values: np.ndarray) -> int:
    table = _byte_table().tolist()
    for value in values.tolist():
        state = table[(state ^ value) & 0xFF] ^ state >> 8
    return state


def _read_parts(state: int, values: np.ndarray) -> int:
    """Read at least 4 bytes: zeros in front, which do not change a state of zero, fill up the parts."""
    n_words = -(-len(values) // (4 * N_PARTS))
    padded = np.zeros(4 * N_PARTS * n_words, np.uint8)
    padded[-len(values) :] = values
    begin = len(padded) - len(values)
    padded[begin : begin + 4] ^= np.frombuffer(state.to_bytes(4, "little"), np.uint8)
    low, high = _word_tables()
    states = np.zeros(N_PARTS, np.uint32)
    for words in np.ascontiguousarray(padded.view("<u4").reshape(N_PARTS, n_words).T):
        mixed = states ^ words
        states = low[mixed & 0xFFFF] ^ high[mixed >> 16]
    step = _zero_bytes(4 * n_words)
    while len(states) > 1:
        states = _apply(step, states[::2]) ^ states[1::2]
        step = _apply(step, step)
    return int(states[0])


@cache
def _byte_table() -> np.ndarray:
    """Return the state after one byte from zero, for all its values."""
    state: np.ndarray = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        state = (state >> 1) ^ np.where(state & 1, np.uint32(POLYNOMIAL), np.uint32(0))
    return state


@cache
def _word_tables() -> tuple[np.ndarray, np.ndarray]:
    """Return the state after four bytes from zero, for all values of the first two of them and of the last two."""
    table, halves = _byte_table(), np.arange(1 << 16, dtype=np.uint32)

    def four_bytes(words: np.ndarray) -> np.ndarray:
        for _ in range(4):
            words = table[words & 0xFF] ^ words >> 8
        return words

    return four_bytes(halves), four_bytes(halves << 16)


@cache
def _zero_bytes(n: int) -> np.ndarray:
    """Return the matrix that moves a state on by n zero bytes: its column k is where bit k goes."""
    if n == 1:
        return np.array([_read_bytes(1 << bit, np.zeros(1, np.uint8)) for bit in range(32)], np.uint32)
    half = _zero_bytes(n // 2)
    whole = _apply(half, half)
    return _apply(_zero_bytes(1), whole) if n % 2 else whole


def _apply(matrix: np.ndarray, states: np.ndarray) -> np.ndarray:
    """Return the product of a matrix with every state."""
    moved = np.zeros_like(states)
    for bit in range(32):
        moved ^= np.where(states >> np.uint32(bit) & 1, matrix[bit], np.uint32(0))
    return moved
