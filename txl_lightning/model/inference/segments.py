"""Streams read in whole segments, wherever calls cut them: for memory tokens, which are written at a segment's end."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from txl_lightning.errors import require
from txl_lightning.model.language_model import ScoringModel
from txl_lightning.model.transformer_xl import TransformerXL


class SegmentedTransformerXL(ScoringModel, nn.Module):
    """Model whose streams are cut into segments of L tokens, counted from their first token; calls may cut elsewhere.

    A `TransformerXL` takes every call as a segment, at whose end it writes its memory. Here the memory is written after
    every L tokens. A segment that is not complete at the end of a call is read again with the tokens of the next one,
    filled up to L tokens, which no token before them sees. So all segments are as long as those of training, and a
    token's hidden state depends only on the tokens from the stream's first to itself.

    Args:
        model: model whose weights and lengths are used; its evaluation mode too.
        segment_len: L.

    Raises:
        OptionError: L is below 1.
    """

    def __init__(self, model: TransformerXL, segment_len: int) -> None:
        super().__init__()
        require(segment_len >= 1, "segment_len", segment_len, "must be an integer >= 1")
        self.model, self.segment_len, self.config = model, segment_len, model.config
        self.losses, self.log_probabilities = model.losses, model.log_probabilities  # type: ignore[method-assign]
        self.training = model.training

    def forward(
        self, tokens_BT: Int[Tensor, "B T"], state: Any = None, n_last: int | None = None
    ) -> tuple[Float[Tensor, "B Q D"], Any]:
        """Return the hidden states of the last tokens and the state after them.

        Args:
            tokens_BT: T consecutive tokens of B streams.
            state: returned by the previous call: the memory at the start of the open segment, and its tokens; None for
                the start of the streams.
            n_last: Q, the number of tokens, counted from the last, whose states are returned; None for all.
        """
        memory, open_BT = (None, tokens_BT[:, :0]) if state is None else state
        hidden, L = [], self.segment_len
        for segment_BT in torch.cat([open_BT, tokens_BT], dim=1).split(L, dim=1):
            n = segment_BT.shape[1]
            hidden_BTD, after = self.model(F.pad(segment_BT, (0, L - n)), memory)
            hidden.append(hidden_BTD[:, :n])
            memory, open_BT = (after, segment_BT[:, :0]) if n == L else (memory, segment_BT)
        n_returned = tokens_BT.shape[1] if n_last is None else n_last
        read_BTD = torch.cat(hidden, dim=1)
        return read_BTD[:, read_BTD.shape[1] - n_returned :], (memory, open_BT)

    def losses_at(
        self, tokens_BT: Int[Tensor, "B T"], targets_BC: Int[Tensor, "B C"], places_C: Int[Tensor, " C"]
    ) -> Float[Tensor, "B C"]:
        """Return the losses, in nats, of the targets after the tokens at `places_C` of a stream's first T tokens."""
        return self.losses(self(tokens_BT)[0][:, places_C], targets_BC)
