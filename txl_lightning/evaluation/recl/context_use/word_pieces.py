"""First and later pieces of words among the tokens of a text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.evaluation.language_models.tokenized_text import TokenizedText

REACH = 4  # bytes of the longest character in UTF-8

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Piece(NamedTuple):
    """Token in its text: bytes [begin, end) of `content`, which has a character before and after them.

    `continues` tells that the token is a later part of the character at `begin`.
    """

    content: bytes
    begin: int
    end: int
    continues: bool = False


def word_pieces(pieces: Iterable[Piece]) -> tuple[Mask, Mask]:
    """Return which tokens are the first piece of a word, and which a later one; spaces and punctuation are neither.

    A word is a run of letters, digits and `_`, in any script. A token in which a word begins is a first piece, also
    with a space before the word; a token with characters of a word none of which begins one is a later piece. Where
    tokens are characters or bytes, the first character of a word (its first byte) is the first piece.
    """
    kinds = np.array([_first_or_later(piece) for piece in pieces], dtype=bool).reshape(-1, 2)
    return kinds[:, 0], kinds[:, 1]


def _first_or_later(piece: Piece) -> tuple[bool, bool]:
    place, before, first, later = 0, False, False, False
    for character in piece.content.decode("utf-8", errors="surrogateescape"):  # a byte that is no text: a surrogate
        size = len(character.encode("utf-8", errors="surrogateescape"))
        in_word = character.isalnum() or character == "_"
        if in_word and place < piece.end and place + size > piece.begin:
            begins = not before and place >= piece.begin and not piece.continues
            first, later = first or begins, later or not begins
        place, before = place + size, in_word
    return first, later and not first


def pieces_of_text(text: TokenizedText, content: bytes, positions: Integers) -> Iterator[Piece]:
    """Yield the tokens at `positions` of a text with known starts."""
    assert text.starts is not None
    begins = text.starts[positions]
    ends = np.append(text.starts, text.n_bytes)[np.searchsorted(text.starts, begins, side="right")]
    parts = text.starts[np.maximum(positions - 1, 0)] == begins
    for t, begin, end, part in zip(positions.tolist(), begins.tolist(), ends.tolist(), parts.tolist(), strict=True):
        start = max(0, begin - REACH)
        yield Piece(content[start : end + REACH], begin - start, end - start, part and t > 0)


def pieces_of_symbols(vocabulary: Vocabulary, tokens: np.ndarray, positions: Integers) -> Iterator[Piece] | None:
    """Return the tokens at `positions` of an encoded split of characters, bytes or BPE; None for words."""
    if vocabulary.level == "word":
        return None
    if vocabulary.consists_of_bytes:
        encoded = [symbol.encode("latin-1") for symbol in vocabulary.symbols] or [bytes([b]) for b in range(256)]
    else:  # a symbol of several characters is `<unk>`: a character outside of the vocabulary
        encoded = [(symbol if len(symbol) == 1 else "\ufffd").encode() for symbol in vocabulary.symbols]

    def piece(t: int) -> Piece:
        start = max(0, t - REACH)
        before, after = tokens[start:t].tolist(), tokens[t + 1 : t + 1 + REACH].tolist()
        begin, own = b"".join(encoded[token] for token in before), encoded[int(tokens[t])]
        content = begin + own + b"".join(encoded[token] for token in after)
        return Piece(content, len(begin), len(begin) + len(own))

    return map(piece, positions.tolist())
