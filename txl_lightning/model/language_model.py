"""What training, scoring and every measurement ask of a model."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class LanguageModel(Protocol):
    """Anything that scores tokens given a state it returned before."""

    def score(self, tokens_BT: Tensor, targets_BT: Tensor, memory: Any = None, /) -> tuple[Tensor, Any]:
        """Loss in nats of every target in token order, and the state after the last token."""
        ...
