"""A model's interface for training, scoring and every measurement."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool
from torch import Tensor

from txl_lightning.errors import require
from txl_lightning.model.shapes import (
    Counts,
    Hidden,
    LogProbabilities,
    Losses,
    TargetLosses,
    Targets,
    Tokens,
)

NO_LENGTHS = "must be None: this model needs streams of one length"


@runtime_checkable
class LanguageModel(Protocol):
    """A model that scores tokens, given the state that it returned for the tokens before them."""

    def score(
        self, tokens_BT: Tensor, targets_BT: Tensor, memory: Any = None, /
    ) -> tuple[Tensor, Any]:
        """Return every target's loss in nats in token order, and the state after the last token."""
        ...


@runtime_checkable
class SelectiveModel(Protocol):
    """A language model that can score only some targets in a text."""

    def losses_at(self, tokens_BT: Tensor, targets_BC: Tensor, places_C: Tensor, /) -> Tensor:
        """Return the losses, [B, C], in nats, for the targets after the tokens at `places_C`, from a fresh state."""
        ...


class ScoringModel:
    """Inputs, and losses and distributions from hidden states, by a model's `embedding` and `softmax`."""

    takes_lengths = False  # whether a call takes `lengths_B`
    _fabric: Any = (
        None  # set by Lightning Fabric, whose precision covers calls only and not other methods
    )

    def embed(
        self: Any,
        tokens_BT: Tokens | None,
        inputs_BTD: Hidden | None,
        lengths_B: Counts | None = None,
    ) -> Hidden:
        """Return the tokens' scaled embeddings, or the inputs that take their place.

        Raises:
            OptionError: tokens are given to a model without a vocabulary, or lengths to one that
                takes none.
            ValueError: both or neither are given, the inputs do not have width D, or the lengths do not fit.
        """
        if (tokens_BT is None) == (inputs_BTD is None):
            raise ValueError("give either tokens or inputs_BTD")
        if lengths_B is not None:
            require(self.takes_lengths, "lengths_B", lengths_B.tolist(), NO_LENGTHS)
        if inputs_BTD is None:
            assert tokens_BT is not None
            if lengths_B is not None:
                tokens_BT = tokens_BT.masked_fill(padding(lengths_B, *tokens_BT.shape), 0)
            return self.embedding(tokens_BT)
        d_model = self.config.d_model
        if inputs_BTD.shape[2:] != (d_model,):
            shape = tuple(inputs_BTD.shape)
            raise ValueError(f"inputs_BTD of shape {shape}: D must be d_model={d_model}")
        if lengths_B is not None:
            padding_BT = padding(lengths_B, *inputs_BTD.shape[:2])
            inputs_BTD = inputs_BTD.masked_fill(padding_BT[:, :, None], 0)
        return inputs_BTD

    def score(
        self: Any,
        tokens_BT: Tokens,
        targets_BT: Targets,
        memory: Any = None,
        lengths_B: Counts | None = None,
        known_targets_BT: Targets | None = None,
    ) -> tuple[TargetLosses, Any]:
        """Return nll_t = -log P(target_t | its tokens, memory) in nats, in token order, and the new memory.

        Args:
            tokens_BT: may be longer than the targets; the first tokens are then context without a
                loss, such as extended context. A recurrent model needs none: its state has read all
                tokens.
            targets_BT: the token after each of the last T_targets tokens.
            memory: returned for the previous segment; None at the streams' start.
            lengths_B: each stream's number of tokens, from 0 to T; what follows them, and its targets, is padding. Its
                loss is 0, and a stream's new memory ends with the stream's last real token. None without padding.
            known_targets_BT: the targets on the CPU. A model with cut-offs on a GPU then waits for no count.

        Raises:
            OptionError: lengths are given to a model that takes none.
            ValueError: there are fewer tokens than targets, the memory has another number of streams, or the lengths do
                not fit.
        """
        T = tokens_BT.shape[1]
        T_targets = targets_BT.shape[1]
        if T_targets > T:
            raise ValueError(f"{T} tokens cannot predict {T_targets} targets")
        options: dict[str, Any] = {"n_last": T_targets}
        if lengths_B is not None:
            options["lengths_B"] = lengths_B
        precision: Any = nullcontext()
        if self._fabric is not None:
            memory = self._fabric._precision.convert_input(memory)  # private
            precision = self._fabric.autocast()
        with precision:
            hidden_BTD, memory = self(tokens_BT, memory, **options)
            if lengths_B is None:
                return self.losses(hidden_BTD, targets_BT, known_targets_BT), memory
            is_padding_BT = padding(lengths_B, *tokens_BT.shape)[:, T - T_targets :]
            targets_BT = targets_BT.masked_fill(is_padding_BT, 0)
            nll_BT = self.losses(hidden_BTD, targets_BT)
            return nll_BT.masked_fill(is_padding_BT, 0.0), memory

    def losses(
        self: Any,
        hidden_BTD: Hidden,
        targets_BT: Tokens,
        known_targets_BT: Tensor | None = None,
    ) -> Losses:
        """Return -log P(target | h) in nats, from a call's hidden states."""
        return self.softmax(hidden_BTD, targets_BT, self.embedding, known_targets_BT)

    def log_probabilities(self: Any, hidden_BTD: Hidden) -> LogProbabilities:
        """Return log P(token | h) for every token in the vocabulary, from a call's hidden states."""
        if self._fabric is not None:  # whose calls return float32 in every precision
            hidden_BTD = hidden_BTD.to(next(self.parameters()).dtype)
        return self.softmax.log_probabilities(hidden_BTD, self.embedding)


def padding(
    lengths_B: Counts,
    batch_size: int,
    n_tokens: int,
) -> Bool[Tensor, "B T"]:
    """Return which places in every stream follow its last token.

    Raises:
        ValueError: there is not one length for each stream, or one is not in 0 … T.
    """
    fit = lengths_B.shape == (batch_size,)
    if not fit or lengths_B.min() < 0 or lengths_B.max() > n_tokens:
        allowed = f"must be {batch_size} lengths from 0 to {n_tokens}"
        raise ValueError(f"lengths_B={lengths_B.tolist()}: {allowed}")
    return torch.arange(n_tokens, device=lengths_B.device) >= lengths_B[:, None]
