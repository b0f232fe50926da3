"""Check a model from elsewhere: one pass over a window must give the same losses as windows with exactly c tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from txl_lightning.recl.effective_context import Array, Integers
from txl_lightning.recl.models import Member, foreign_errors
from txl_lightning.recl.windows import WindowReader, read_windows

N_BEGINS = 3  # windows for each length
LARGEST = 700.0  # nats; a perplexity of a larger loss would overflow
ROUNDING = 1e-3  # share of the losses' standard deviation, in float32
LOOKS_AHEAD = (
    "must be a causal language model: its losses depend on later tokens "
    "(an encoder whose config lacks is_decoder?)"
)


def checked(member: Member, contexts: Sequence[int]) -> Member:
    """Return a model from elsewhere as it can be read exactly; a run's model as it is.

    One pass must give the same losses as fresh windows with exactly c tokens: at the shortest, a middle and the longest
    context, and around every length between them in the model's `window_lengths` (for Hugging Face the integers in the
    config). Otherwise `one_pass` becomes false: each target has its window, ending before it. Losses must not depend on
    the tokens after their targets.

    Args:
        member: the model, with a text longer than the longest context.
        contexts: grid of contexts.

    Raises:
        OptionError: the model fails, its losses have another shape or are not -log P, or they
            depend on later tokens.
    """
    if member.trained is not None:
        return member
    reader = member.reader
    tokens = member.text.tokens
    tried_C = _tried_contexts(reader, contexts)
    longest = int(tried_C[-1])
    begins = np.linspace(
        0,
        len(tokens) - 1 - longest,
        N_BEGINS,
        dtype=np.int64,
    )
    begins_N = np.repeat(begins, len(tried_C))
    targets_N = begins_N + np.tile(tried_C, N_BEGINS)
    direct = replace(reader, one_pass=False)
    with foreign_errors(member.reference, f"cannot read {longest} tokens"):
        exact = read_windows(direct, tokens, begins_N, targets_N)
        require_losses(member, exact)
        losses = read_windows(reader, tokens, begins_N, targets_N)
        require_losses(member, losses)
        if not _are_close(losses, exact):
            member.require(not _looks_ahead(reader, tokens, longest), LOOKS_AHEAD)
            reader = direct
    difference = float(np.abs(losses - exact).max())
    findings = {**member.findings, "one_pass_difference": difference}
    return replace(member, reader=reader, findings=findings)


def require_losses(member: Member, losses: Array) -> None:
    """Raise an OptionError that names the model unless all losses are -log P, up to rounding."""
    is_loss = (losses > -ROUNDING) & (losses < LARGEST)
    member.require(
        bool(is_loss.all()),
        f"has losses that are not -log P in 0 … {LARGEST:g} nats",
    )


def _tried_contexts(reader: WindowReader, contexts: Sequence[int]) -> Integers:
    """Return the contexts to compare, ascending."""
    middle = contexts[len(contexts) // 2]
    tried = [contexts[0], middle, contexts[-1]]
    for length in getattr(reader.model, "window_lengths", []):
        tried += [length - 1, length, length + 1]
    tried_C = np.clip(tried, contexts[0], contexts[-1])
    return np.unique(
        np.minimum(
            tried_C,
            reader.limit or contexts[-1],
        )
    )


def _looks_ahead(reader: WindowReader, tokens: np.ndarray, longest: int) -> bool:
    """Return whether losses in a window's first half change with the tokens in its second half."""
    middle = longest // 2
    targets = np.append(np.arange(1, middle + 1), longest)  # the last one only lengthens the window
    begins = np.zeros_like(targets)
    other_tokens = np.append(
        tokens[: middle + 1],
        tokens[middle - longest :],
    )
    losses = read_windows(reader, tokens, begins, targets)
    other_losses = read_windows(reader, other_tokens, begins, targets)
    return not _are_close(
        losses[:-1],
        other_losses[:-1],
    )


def _are_close(losses: Array, expected: Array) -> bool:
    """Return whether losses are equal up to float32 rounding."""
    tolerance = 1e-6 + ROUNDING * expected.std()
    return np.allclose(losses, expected, rtol=1e-6, atol=tolerance)
