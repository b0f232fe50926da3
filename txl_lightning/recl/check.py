"""Check of a model from elsewhere: one pass over a window must give the losses of windows with exactly c tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from txl_lightning.evaluation.losses import device_of
from txl_lightning.evaluation.windows import WindowReader, read_windows
from txl_lightning.recl.effective_context import Array, Integers
from txl_lightning.recl.models import Member, TokenizedText, foreign_errors

CHECK_SHARE = 0.02  # of the tokens of the measurement
MOST_BEGINS = 8
ROUNDING = 1e-3  # share of the losses' standard deviation, in float32


def checked(member: Member, text: TokenizedText, contexts: Sequence[int], n_positions: int) -> Member:
    """Return a model from elsewhere as it can be read exactly; a model of a run as it is.

    One pass must give the losses of fresh windows of exactly c tokens: at the shortest, a middle and the longest
    context, and around every length between them in `window_lengths` of the model, of Hugging Face the integers of the
    config. Otherwise `one_pass` becomes false, and the losses must not change with the tokens after their targets.

    Args:
        member: the model.
        text: the text, longer than the longest context.
        contexts: grid of contexts.
        n_positions: P of the grid. The check reads at most 2 % of its tokens, but two windows of each length.

    Raises:
        OptionError: the model fails, its losses have another shape, or depend on later tokens.
    """
    if member.trained is not None:
        return member
    tried_C = _tried_contexts(member.reader, len(text.tokens), contexts)
    shortest = int(tried_C[0])
    longest = int(tried_C[-1])
    with foreign_errors(member.reference, f"cannot read {longest} tokens"), torch.no_grad():
        _require_losses(member, text.tokens[: shortest + 1])
        if not member.reader.one_pass:
            return member
        begins_N, targets_N = _windows(tried_C, len(text.tokens), n_positions)
        exact_N = _losses(member.reader, text.tokens, begins_N, targets_N, one_pass=False)
        one_pass_N = _losses(member.reader, text.tokens, begins_N, targets_N, one_pass=True)
        member = member.finding(one_pass_difference=float(np.abs(exact_N - one_pass_N).max()))
        tolerance = 1e-6 + ROUNDING * exact_N.std()
        if np.allclose(one_pass_N, exact_N, rtol=1e-6, atol=tolerance):
            return member
        middle = int(tried_C[len(tried_C) // 2])
        reversed_after = np.append(text.tokens[: middle + 1], text.tokens[:middle:-1])
        changed_N = _losses(member.reader, reversed_after, begins_N, targets_N, one_pass=True)
    before = targets_N <= middle
    is_causal = np.allclose(changed_N[before], one_pass_N[before], rtol=1e-6, atol=tolerance)
    allowed = f"must be a causal language model: losses of {member.kind} depend on later tokens"
    member.require(is_causal, allowed)
    return replace(member, reader=replace(member.reader, one_pass=False))


def _tried_contexts(reader: WindowReader, n_tokens: int, contexts: Sequence[int]) -> Integers:
    """Return the contexts to compare, ascending."""
    visible = [min(reader.visible(context), n_tokens - 1) for context in contexts]
    seen_C = np.unique(visible)
    lengths = np.array(getattr(reader.model, "window_lengths", []), dtype=np.int64)
    around = np.concatenate([lengths - 1, lengths, lengths + 1])
    between = around[(around > seen_C[0]) & (around < seen_C[-1])]
    middle = seen_C[len(seen_C) // 2]
    return np.unique([seen_C[0], middle, seen_C[-1], *between])


def _windows(tried_C: Integers, n_tokens: int, n_positions: int) -> tuple[Integers, Integers]:
    """Return the first token and the target of every window to compare."""
    longest = tried_C[-1]
    share = n_positions * longest / (longest + tried_C.sum())
    n_begins = int(np.clip(CHECK_SHARE * share, 2, MOST_BEGINS))
    begins = np.linspace(0, n_tokens - 1 - longest, n_begins, dtype=np.int64)
    begins_N = np.repeat(begins, len(tried_C))
    return begins_N, begins_N + np.tile(tried_C, n_begins)


def _losses(
    reader: WindowReader,
    tokens: np.ndarray,
    begins_N: Integers,
    targets_N: Integers,
    one_pass: bool,
) -> Array:
    reader = replace(reader, one_pass=one_pass)
    losses_N = read_windows(reader, tokens, begins_N, targets_N, targets_N)
    return np.nan_to_num(losses_N, posinf=0, neginf=0)


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
