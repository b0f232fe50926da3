"""Check of a model from elsewhere: one pass over a window must give the losses of windows with exactly c tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from txl_lightning.evaluation.losses import WindowReader, device_of, read_windows
from txl_lightning.recl.effective_context import Array, Integers
from txl_lightning.recl.models import Member, TokenizedText, foreign_errors

N_BEGINS = 3  # windows of each length
ROUNDING = 1e-3  # share of the losses' standard deviation, in float32


@dataclass(frozen=True)
class Windows:
    """Windows of a text whose last targets are compared.

    Args:
        begins_N: first token of each window.
        targets_N: target of each window, after its last token.
    """

    begins_N: Integers
    targets_N: Integers

    def losses(self, reader: WindowReader, tokens: np.ndarray, one_pass: bool) -> Array:
        """Return the losses of the targets."""
        reader = replace(reader, one_pass=one_pass)
        losses_N = read_windows(reader, tokens, self.begins_N, self.targets_N, self.targets_N)
        return np.nan_to_num(losses_N, posinf=0, neginf=0)


def checked(member: Member, text: TokenizedText, contexts: Sequence[int]) -> Member:
    """Return a model from elsewhere as it can be read exactly; a model of a run as it is.

    One pass must give the losses of fresh windows of exactly c tokens: at the shortest, a middle and
    the longest context, and around every length between them in `window_lengths` of the model, of
    Hugging Face the integers of the config. Otherwise `one_pass` becomes false, and the losses must
    not change with the tokens after their targets.

    Args:
        member: the model.
        text: the text, longer than the longest context.
        contexts: grid of contexts.

    Raises:
        OptionError: the model fails, its losses have another shape, or depend on later tokens.
    """
    if member.trained is not None:
        return member
    reader = member.reader
    tokens = text.tokens
    tried_C = _tried_contexts(reader, contexts)
    longest = int(tried_C[-1])
    with foreign_errors(member.reference, f"cannot read {longest} tokens"), torch.no_grad():
        _require_losses(member, tokens[: tried_C[0] + 1])
        if not reader.one_pass:
            return member
        windows = _windows(tried_C, len(tokens))
        exact_N = windows.losses(reader, tokens, one_pass=False)
        one_pass_N = windows.losses(reader, tokens, one_pass=True)
        member = member.finding(one_pass_difference=float(np.abs(exact_N - one_pass_N).max()))
        tolerance = 1e-6 + ROUNDING * exact_N.std()
        if np.allclose(one_pass_N, exact_N, rtol=1e-6, atol=tolerance):
            return member
        middle = int(tried_C[len(tried_C) // 2])
        others_after = np.append(tokens[: middle + 1], tokens[:middle:-1])
        changed_N = windows.losses(reader, others_after, one_pass=True)
    before = windows.targets_N <= middle
    is_causal = np.allclose(changed_N[before], one_pass_N[before], rtol=1e-6, atol=tolerance)
    allowed = f"must be a causal language model: losses of {member.kind} depend on later tokens"
    member.require(is_causal, allowed)
    return replace(member, reader=replace(reader, one_pass=False))


def _tried_contexts(reader: WindowReader, contexts: Sequence[int]) -> Integers:
    """Return the contexts to compare, ascending."""
    shortest = reader.visible(contexts[0])
    middle = reader.visible(contexts[len(contexts) // 2])
    longest = reader.visible(contexts[-1])
    lengths = np.array(getattr(reader.model, "window_lengths", []), dtype=np.int64)
    around = np.concatenate([lengths - 1, lengths, lengths + 1])
    between = around[(around > shortest) & (around < longest)]
    return np.unique([shortest, middle, longest, *between])


def _windows(tried_C: Integers, n_tokens: int) -> Windows:
    last_begin = n_tokens - 1 - tried_C[-1]
    begins = np.linspace(0, last_begin, N_BEGINS, dtype=np.int64)
    begins_N = np.repeat(begins, len(tried_C))
    return Windows(begins_N, begins_N + np.tile(tried_C, N_BEGINS))


def _require_losses(member: Member, tokens: np.ndarray) -> None:
    """Require that the model returns a tensor with a loss for each target, and a state."""
    model: Any = member.reader.model
    window = torch.from_numpy(tokens.astype(np.int64)).to(device_of(model))
    windows_BT = window.repeat(2, 1)
    result = model.score(windows_BT[:, :-1], windows_BT[:, 1:], None)
    nll: Any = None
    if isinstance(result, tuple | list):
        nll = result[0]
    shape = [2, len(tokens) - 1]
    has_losses = isinstance(nll, Tensor) and list(nll.shape) == shape
    allowed = f"score must return a tensor of losses of shape {shape} for such targets, and a state"
    member.require(has_losses, allowed)
