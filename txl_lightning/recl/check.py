"""Check of a model from elsewhere: one pass over a window must give the losses of windows with exactly c tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from txl_lightning.recl.effective_context import Integers
from txl_lightning.recl.models import Member, TokenizedText, foreign_errors
from txl_lightning.recl.windows import WindowReader, read_windows

N_BEGINS = 3  # windows of each length
ROUNDING = 1e-3  # share of the losses' standard deviation, in float32


def checked(member: Member, text: TokenizedText, contexts: Sequence[int]) -> Member:
    """Return a model from elsewhere as it can be read exactly; a model of a run as it is.

    One pass must give the losses of fresh windows of exactly c tokens: at the shortest, a middle and
    the longest context, and around every length between them in `window_lengths` of the model, of
    Hugging Face the integers of the config. Otherwise `one_pass` becomes false: each target has a
    window of its own, which ends before it.

    Args:
        member: the model.
        text: the text, longer than the longest context.
        contexts: grid of contexts.

    Raises:
        OptionError: the model fails, or its losses have another shape.
    """
    if member.trained is not None:
        return member
    reader = member.reader
    tried_C = _tried_contexts(reader, contexts)
    longest = int(tried_C[-1])
    last = len(text.tokens) - 1
    begins = np.linspace(
        0,
        last - longest,
        N_BEGINS,
        dtype=np.int64,
    )
    begins_N = np.repeat(begins, len(tried_C))
    contexts_N = np.tile(tried_C, N_BEGINS)
    targets_N = begins_N + contexts_N
    with foreign_errors(member.reference, f"cannot read {longest} tokens"):
        direct = replace(reader, one_pass=False)
        losses = read_windows(reader, text.tokens, begins_N, targets_N)
        exact = read_windows(direct, text.tokens, begins_N, targets_N)
    if not reader.one_pass:
        return member
    losses = np.nan_to_num(losses, posinf=0, neginf=0)
    exact = np.nan_to_num(exact, posinf=0, neginf=0)
    difference = float(np.abs(losses - exact).max())
    tolerance = 1e-6 + ROUNDING * exact.std()
    if not np.allclose(losses, exact, rtol=1e-6, atol=tolerance):
        reader = direct
    return replace(member, reader=reader).finding(one_pass_difference=difference)


def _tried_contexts(reader: WindowReader, contexts: Sequence[int]) -> Integers:
    """Return the contexts to compare, ascending."""
    middle = contexts[len(contexts) // 2]
    tried = {contexts[0], middle, contexts[-1]}
    for length in getattr(reader.model, "window_lengths", []):
        for context in (length - 1, length, length + 1):
            if contexts[0] < context < contexts[-1]:
                tried.add(context)
    visible = {reader.visible(context) for context in tried}
    return np.array(sorted(visible))
