"""Causal language models of Hugging Face transformers, with the interface of our own."""

from __future__ import annotations

import copy
import inspect
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

LOGITS_AT_ONCE = 1 << 27  # 512 MiB in float32
RECURRENT_STATES = ("cache_params", "state")  # a state of recurrent layers takes one token at a time
LENGTH_DEPENDENT = ("dynamic", "longrope")  # rotations that depend on the length of the window
TRIED = (5, 4)  # tokens before and after a state


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
            TypeError: a state is given, but the model takes none, or gives other losses with it.
        """
        if state is None:
            tokens_BT = self._with_begin(tokens_BT)
        elif state[0] is None or not self.continues:
            name = type(self.model).__name__
            raise TypeError(f"{name} does not continue a text from its state: score the text at once")
        logits_BTV, state = self._read(tokens_BT, state)
        return _losses(logits_BTV[:, -targets_BT.shape[1] :], targets_BT), state

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

    @cached_property
    def continues(self) -> bool:
        """Whether a text that is continued from a state has the same predictions as the text read at once.

        Tried with a few tokens. In some releases of transformers the states of some models are not exact.
        """
        if depends_on_length(self.model.config.get_text_config()):
            return False
        weights = self.model.get_input_embeddings().weight
        tokens_T = (torch.arange(sum(TRIED), device=weights.device) * 7 + 1) % self.vocab_size
        tokens_BT = torch.stack([tokens_T, tokens_T.flip(0)])  # RWKV of transformers mixes texts that it reads together
        before_BT, after_BT = tokens_BT.split(TRIED, dim=1)
        with torch.no_grad():
            whole_BTV, _ = self._read(tokens_BT, None)
            _, state = self._read(before_BT, None)
            continued_BTV, _ = self._read(after_BT, state)
        expected_BTV = whole_BTV[:, -TRIED[1] :].float()
        rounding = 1e-4 if weights.dtype == torch.float32 else 5e-2
        if continued_BTV.shape != expected_BTV.shape:
            return False
        return bool((continued_BTV.float() - expected_BTV).abs().max() <= rounding * expected_BTV.abs().max())

    @property
    def vocab_size(self) -> int:
        """Number of tokens that the model predicts."""
        return int(self.model.config.get_text_config().vocab_size)

    def _read(self, tokens_BT: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Return the logits, and the cache and the number of tokens that are read by then."""
        cache, n_read = state or (None, 0)
        alone = cache is not None and self._state_name in RECURRENT_STATES
        cache = copy.deepcopy(cache)  # transformers changes it in place
        parts = []
        for piece_BT in tokens_BT.split(1 if alone else tokens_BT.shape[1], dim=1):
            output = self.model(input_ids=piece_BT, use_cache=True, **self._continuing(cache, n_read, piece_BT))
            parts.append(output.logits)
            cache = getattr(output, self._state_name or "", None)
            n_read += piece_BT.shape[1]
        return torch.cat(parts, dim=1), (cache, n_read)

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


def depends_on_length(config: Any) -> bool:
    """Return whether positions are rotated by angles that depend on the length of the window."""
    scaling = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    of_layers = [value for value in scaling.values() if isinstance(value, dict)] or [scaling]
    return any(kind.get("rope_type", kind.get("type")) in LENGTH_DEPENDENT for kind in of_layers)


def _losses(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits_BTV.float().transpose(1, 2), targets_BT, reduction="none")
