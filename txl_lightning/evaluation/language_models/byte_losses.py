"""Losses by bytes of context, the same for every tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from txl_lightning.errors import UserError
from txl_lightning.evaluation.language_models.tokenized_text import TokenizedText
from txl_lightning.evaluation.scoring.span_losses import span_losses
from txl_lightning.evaluation.scoring.windows import Array, WindowReader


@dataclass(frozen=True)
class ByteSpans:
    """Tokens that stand for byte positions, and where their contexts begin.

    Args:
        begins_CP: first token of every context.
        firsts_P: first token of the piece that covers each position.
        stops_P: token after that piece.
        sizes_P: bytes of that piece.
    """

    begins_CP: NDArray[np.int64]
    firsts_P: NDArray[np.int64]
    stops_P: NDArray[np.int64]
    sizes_P: Array


def byte_losses(
    reader: WindowReader,
    text: TokenizedText,
    pieces: NDArray[np.int64],
    positions: NDArray[np.int64],
    contexts: Sequence[int],
    batch_tokens: int | None = None,
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
        batch_tokens: context tokens in a batch; None for the default of the model's device.

    Raises:
        UserError: a position is in the first piece, before which there is no token; or a piece has more tokens than
            the model can see.
    """
    spans = byte_spans(text, pieces, positions, contexts)
    longest = int((spans.stops_P - spans.firsts_P).max(initial=0))
    if reader.visible(longest) < longest:
        raise UserError(f"the tokenizers have no common bound in {longest} tokens; a model sees only {reader.limit}")
    shape = spans.begins_CP.shape
    bounds = (spans.begins_CP, spans.firsts_P, spans.stops_P)
    begins, firsts, stops = (np.broadcast_to(bound, shape).ravel() for bound in bounds)
    losses_CP = span_losses(reader, text.tokens, begins, firsts, stops, batch_tokens).reshape(shape)
    return losses_CP / spans.sizes_P


def byte_spans(
    text: TokenizedText, pieces: NDArray[np.int64], positions: NDArray[np.int64], contexts: Sequence[int]
) -> ByteSpans:
    """Return the tokens of the pieces that cover byte positions, and the beginnings of their contexts.

    Arguments and errors as `byte_losses`.
    """
    if text.starts is None:
        raise UserError("the bytes of the tokens are unknown")
    piece_P = np.searchsorted(pieces, positions, side="right") - 1
    if len(piece_P) and piece_P.min() == 0:
        raise UserError(f"the tokenizers have no common bound in the first {pieces[1]} bytes of the text")
    first_P, stop_P = (np.searchsorted(text.starts, pieces[at]) for at in (piece_P, piece_P + 1))
    begins_CP = np.searchsorted(text.starts, positions - np.asarray(contexts)[:, None])
    sizes_P = (pieces[piece_P + 1] - pieces[piece_P]).astype(np.float64)
    return ByteSpans(np.minimum(begins_CP, first_P - 1), first_P, stop_P, sizes_P)
