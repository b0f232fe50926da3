"""Tokens of a text with the bytes they stand for, so that models with different tokenizers can be compared."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from txl_lightning.data.documents import close_sentences
from txl_lightning.data.vocabulary import SENTENCE, Vocabulary, code_points
from txl_lightning.errors import UserError

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class TokenizedText:
    """Tokens of a text of n bytes.

    Args:
        tokens: token numbers, [K].
        starts: first byte of each token, [K], ascending from 0; tokens that share a byte (parts of a character) have
            one start. A token ends where the next larger start is, the last one at byte n. None if unknown.
        n_bytes: n.
    """

    tokens: np.ndarray
    starts: Integers | None
    n_bytes: int

    def agrees_with(self, other: TokenizedText) -> bool:
        """Return whether both tokenizers cut the text into the same tokens; token numbers may differ."""
        if self.starts is None or other.starts is None:
            return np.array_equal(self.tokens, other.tokens)
        return self.n_bytes == other.n_bytes and np.array_equal(self.starts, other.starts)


def with_vocabulary(vocabulary: Vocabulary, content: bytes, closed: bool = False) -> TokenizedText:
    """Encode a text as a run does. Starts are unknown for words, and where bytes are dropped.

    Args:
        vocabulary: vocabulary of the run.
        content: the text.
        closed: put `<S>` at the ends of sentences too.

    Raises:
        UserError: a symbol is not in the vocabulary.
    """
    tokens = vocabulary.of_known_characters().encode(content)
    if closed:
        tokens, _ = close_sentences(tokens, vocabulary.numbers[SENTENCE])
    if vocabulary.level == "char":
        return TokenizedText(tokens, character_starts(content.decode()), len(content))
    if vocabulary.level == "bpe" and vocabulary.byte_lengths is not None:
        lengths = vocabulary.byte_lengths[tokens]
        return TokenizedText(tokens, np.cumsum(lengths) - lengths, len(content))
    each_byte = vocabulary.level == "byte" and len(tokens) == len(content)
    return TokenizedText(tokens, np.arange(len(content)) if each_byte else None, len(content))


def character_starts(text: str) -> Integers:
    """Return the first byte of every character in UTF-8."""
    points = code_points(text).astype(np.int64)
    sizes = 1 + (points >= 0x80) + (points >= 0x800) + (points >= 0x10000)
    return np.cumsum(sizes) - sizes


def starts_of_spans(begins: Integers, ends: Integers) -> Integers:
    """Return one start for each token from spans [begin, end), which may overlap and leave gaps, [K].

    Bytes between two tokens belong to the second one, so the first start is 0. A token that begins before the end of
    an earlier one shares the start of that one.
    """
    covered = np.concatenate([[0], np.maximum.accumulate(ends)[:-1]])
    separate = begins >= covered
    separate[:1] = True
    first_of_group = np.maximum.accumulate(np.where(separate, np.arange(len(begins)), 0))
    starts: Integers = covered[first_of_group]
    return starts


def common_pieces(texts: Sequence[TokenizedText]) -> Integers:
    """Return the bounds 0 … n of the pieces of a text: the bytes at which no tokenizer has a token that goes on.

    Raises:
        UserError: the starts of a text are unknown.
    """
    starts = [text.starts for text in texts if text.starts is not None]
    if len(starts) < len(texts):
        raise UserError("tokens whose bytes are unknown")
    common = reduce(np.intersect1d, starts)
    return np.append(common, texts[0].n_bytes)


def whole_characters(content: bytes) -> str:
    """Return UTF-8 text without a character that is cut at either end.

    Raises:
        UserError: the bytes are not UTF-8.
    """
    first = next((i for i, byte in enumerate(content[:4]) if byte & 0xC0 != 0x80), 0)
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(content[first:])
    except UnicodeDecodeError as error:
        raise UserError(f"is not UTF-8 text (byte {first + error.start})") from error
