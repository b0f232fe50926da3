"""Causal language models of Hugging Face transformers, with the interface of our own."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from torch import Tensor, nn

LOGITS_AT_ONCE = 1 << 27  # 512 MiB in float32
RECURRENT_STATES = ("cache_params", "state")  # a state of recurrent layers takes one token at a time


class HuggingFaceModel(nn.Module):
    """Language model around a causal model of transformers; every text is read from position 0.

    Args:
        model: model of `AutoModelForCausalLM`.
        begin_of_text: token read before the first token of a text, in addition to its context; None for none.
    """

    def __init__(self, model: Any, begin_of_text: int | None = None) -> None:
        super().__init__()
        self.model: Any = model
        self.begin_of_text = begin_of_text
        self._accepted = inspect.signature(model.forward).parameters
        names = [name for name in (*RECURRENT_STATES, "past_key_values") if name in self._accepted]
        self._state_name = names[0] if names else None

    def score(self, tokens_BT: Tensor, targets_BT: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Return the loss of each target in nats, and the model's own cache after the last token.

        The given state stays as it is. Losses are in float32 whatever the precision of the model.

        Args:
            tokens_BT: tokens; the first ones are context if there are fewer targets.
            targets_BT: next tokens of the last tokens.
            state: state that an earlier call returned; None at the beginning of a text.

        Raises:
            TypeError: a state is given, but the model takes none.
        """
        cache, n_read = state or (None, 0)
        if state is None:
            pieces = [self._with_begin(tokens_BT)]
        elif cache is None:
            raise TypeError(f"{type(self.model).__name__} takes no state: score the text at once")
        else:
            pieces = list(tokens_BT.split(1, dim=1)) if self._state_name in RECURRENT_STATES else [tokens_BT]
            cache = copy.deepcopy(cache)  # transformers changes it in place
        parts = []
        for piece_BT in pieces:
            output = self.model(input_ids=piece_BT, use_cache=True, **self._continuing(cache, n_read, piece_BT))
            parts.append(output.logits)
            cache = getattr(output, self._state_name or "", None)
            n_read += piece_BT.shape[1]
        logits_BTV = torch.cat(parts, dim=1)[:, -targets_BT.shape[1] :]
        return _losses(logits_BTV, targets_BT), (cache, n_read)

    def losses_at(self, tokens_BT: Tensor, targets_BC: Tensor, places_C: Tensor) -> Tensor:
        """Return the losses, [B, C], of the targets after the tokens at `places_C` of a text that begins with them.

        Only their logits are computed if the model allows it, for a few rows at a time.
        """
        tokens_BT = self._with_begin(tokens_BT)
        places_C = places_C + (self.begin_of_text is not None)
        selects = "logits_to_keep" in self._accepted
        n_logits = len(places_C) if selects else tokens_BT.shape[1]
        rows = max(1, LOGITS_AT_ONCE // (n_logits * self.vocab_size))
        parts = []
        for some_tokens_BT, some_targets_BC in zip(tokens_BT.split(rows), targets_BC.split(rows), strict=True):
            selected = {"logits_to_keep": places_C} if selects else {}
            logits_BCV = self.model(input_ids=some_tokens_BT, use_cache=False, **selected).logits
            parts.append(_losses(logits_BCV if selects else logits_BCV[:, places_C], some_targets_BC))
        return torch.cat(parts)

    @property
    def vocab_size(self) -> int:
        """Number of tokens that the model predicts."""
        return int(self.model.config.get_text_config().vocab_size)

    def _with_begin(self, tokens_BT: Tensor) -> Tensor:
        if self.begin_of_text is None:
            return tokens_BT
        return torch.cat([tokens_BT.new_full((len(tokens_BT), 1), self.begin_of_text), tokens_BT], dim=1)

    def _continuing(self, cache: Any, n_read: int, piece_BT: Tensor) -> dict[str, Any]:
        """Return the arguments with which the model goes on after `n_read` tokens."""
        if cache is None or self._state_name is None:
            return {}
        given = {self._state_name: cache}
        if "cache_position" in self._accepted:
            given["cache_position"] = torch.arange(n_read, n_read + piece_BT.shape[1], device=piece_BT.device)
        return given


def _losses(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits_BTV.float().transpose(1, 2), targets_BT, reduction="none")
