"""Losses by bytes of context, the same for every tokenizer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from txl_lightning.errors import UserError
from txl_lightning.evaluation.language_models.tokenized_text import TokenizedText
from txl_lightning.evaluation.scoring.span_losses import span_losses
from txl_lightning.evaluation.scoring.windows import Array, WindowReader


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
        UserError: a position is in the first piece, before which there is no token.
    """
    if text.starts is None:
        raise UserError("the bytes of the tokens are unknown")
    piece_P = np.searchsorted(pieces, positions, side="right") - 1
    if len(piece_P) and piece_P.min() == 0:
        raise UserError(f"the tokenizers have no common bound in the first {pieces[1]} bytes of the text")
    first_P, stop_P = (np.searchsorted(text.starts, pieces[at]) for at in (piece_P, piece_P + 1))
    shape = (len(contexts), len(positions))
    begins_CP = np.searchsorted(text.starts, positions - np.asarray(contexts)[:, None])
    begins_CP = np.minimum(begins_CP, first_P - 1)
    begins, firsts, stops = (np.broadcast_to(of_P, shape).ravel() for of_P in (begins_CP, first_P, stop_P))
    losses_CP = span_losses(reader, text.tokens, begins, firsts, stops, batch_tokens).reshape(shape)
    sizes_P: Array = (pieces[piece_P + 1] - pieces[piece_P]).astype(np.float64)
    return losses_CP / sizes_P
