"""Interface of a model for training, scoring and every measurement."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class LanguageModel(Protocol):
    """A model that scores tokens, given the state that it returned for the tokens before them."""

    def score(self, tokens_BT: Tensor, targets_BT: Tensor, memory: Any = None, /) -> tuple[Tensor, Any]:
        """Return the loss in nats of every target in token order, and the state after the last token."""
        ...


@runtime_checkable
class SelectiveModel(Protocol):
    """A language model that can score some targets of a text without the others."""

    def losses_at(self, tokens_BT: Tensor, targets_BC: Tensor, places_C: Tensor, /) -> Tensor:
        """Return the losses, [B, C], in nats, of the targets after the tokens at `places_C`, from a fresh state."""
        ...
