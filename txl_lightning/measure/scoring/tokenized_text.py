"""Tokens of a text with the bytes they stand for: losses by bytes of context, pieces of words."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from txl_lightning.data.vocabulary import SENTENCE, Vocabulary, close_sentences, code_points
from txl_lightning.errors import UserError
from txl_lightning.measure.scoring.windows import Array, Integers, WindowReader, span_losses


@dataclass(frozen=True)
class TokenizedText:
    """Tokens of a text of n bytes.

    Args:
        tokens: token numbers, [K].
        starts: first byte of each token, [K], ascending from 0; tokens that share a byte (parts of a character) have
            one start. A token ends where the next larger start is, the last one at byte n. None if unknown.
        n_bytes: n.
        documents: first token of each document, ascending from 0; None where they are unknown, are marked in the
            tokens, or do not matter.
    """

    tokens: np.ndarray
    starts: Integers | None
    n_bytes: int
    documents: Integers | None = None

    def document_begins(self, positions: Integers) -> Integers:
        """Return the first token of the document of the token before each position; 0 without documents."""
        if self.documents is None:
            return np.zeros_like(positions)
        return self.documents[np.searchsorted(self.documents, positions - 1, side="right") - 1]

    @property
    def known_starts(self) -> Integers:
        """First byte of each token.

        Raises:
            UserError: it is unknown.
        """
        if self.starts is None:
            raise UserError("the bytes of the tokens are unknown")
        return self.starts

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
    """Return the bounds 0 … n of the pieces of a text: the bytes at which no tokenizer has a token that goes on."""
    return np.append(reduce(np.intersect1d, [text.known_starts for text in texts]), texts[0].n_bytes)


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


def byte_losses(
    reader: WindowReader, text: TokenizedText, pieces: Integers, positions: Integers, contexts: Sequence[int]
) -> Array:
    """Return l(c, t), [C, P], in nats per byte, for byte positions t and contexts of c bytes.

        l(c, t) = 1 / (b - a) · Σ_k -log P(x_k | tokens that begin at byte t - c or later, as far as x_{k-1})

    [a, b) is the piece that covers byte t, and x_k are its tokens: no tokenizer of the group has a token across a or
    b, so all models predict the same bytes. The context is cut to whole tokens, at byte t - c or after it. A model
    reads at least one token, also where the last one before the piece has more than c bytes.

    Args:
        reader: reader of the model.
        text: tokens of the model, with known starts.
        pieces: bounds of the pieces, from `common_pieces`.
        positions: t.
        contexts: c, in bytes.

    Raises:
        UserError: a position is in the first piece, before which there is no token; or a piece has more tokens than
            the model can see.
    """
    begins_CP, firsts_P, stops_P, sizes_P = byte_spans(text, pieces, positions, contexts)
    longest = int((stops_P - firsts_P).max(initial=0))
    if reader.visible(longest) < longest:
        raise UserError(f"the tokenizers have no common bound in {longest} tokens; a model sees only {reader.limit}")
    bounds = np.broadcast_arrays(begins_CP, firsts_P, stops_P)
    begins, firsts, stops = (bound_CP.ravel() for bound_CP in bounds)
    losses_CP = span_losses(reader, text.tokens, begins, firsts, stops).reshape(bounds[0].shape)
    return losses_CP / sizes_P


def byte_spans(
    text: TokenizedText, pieces: Integers, positions: Integers, contexts: Sequence[int]
) -> tuple[Integers, Integers, Integers, Array]:
    """Return the tokens of the pieces that cover byte positions, and the beginnings of their contexts.

    Arguments and errors as `byte_losses`.

    Returns:
        First token of every context, [C, P]; first token of the piece that covers each position, the token after that
        piece, and the bytes of that piece, each [P].
    """
    starts = text.known_starts
    piece_P = np.searchsorted(pieces, positions, side="right") - 1
    if len(piece_P) and piece_P.min() == 0:
        raise UserError(f"the tokenizers have no common bound in the first {pieces[1]} bytes of the text")
    first_P, stop_P = (np.searchsorted(starts, pieces[at]) for at in (piece_P, piece_P + 1))
    begins_CP = np.searchsorted(starts, positions - np.asarray(contexts)[:, None])
    sizes_P = (pieces[piece_P + 1] - pieces[piece_P]).astype(np.float64)
    return np.minimum(begins_CP, first_P - 1), first_P, stop_P, sizes_P
