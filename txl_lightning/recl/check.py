"""Check a model from elsewhere: one pass over a window must give the same losses as windows with exactly c tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from txl_lightning.recl.effective_context import Array
from txl_lightning.recl.models import Member
from txl_lightning.recl.windows import WindowReader, read_windows, require_losses

N_BEGINS = 3  # windows for each length
ROUNDING = 1e-3  # share of the losses' standard deviation, in float32
LOOKS_AHEAD = (
    "must be a causal language model: its losses depend on later tokens "
    "(an encoder whose config lacks is_decoder?)"
)


def checked(member: Member, tokens: np.ndarray, contexts: Sequence[int]) -> Member:
    """Return a model from elsewhere as it can be read exactly; a run's model as it is.

    One pass must give the same losses as fresh windows with exactly c tokens: at the shortest, a middle and the longest
    context, and around every length between them in the model's `window_lengths` (for Hugging Face the integers in the
    config). Otherwise `one_pass` becomes false: each target has its window, ending before it. A model whose losses
    depend on the tokens after their targets was trained for something else, and is refused.

    Args:
        member: the model.
        tokens: its text, longer than the longest context.
        contexts: grid of contexts.

    Raises:
        OptionError: its losses depend on later tokens.
        ValueError: they have another shape or are not -log P.
    """
    if member.trained is not None:
        return member
    reader = member.reader
    tried = [contexts[0], contexts[len(contexts) // 2], contexts[-1]]
    for length in getattr(reader.model, "window_lengths", []):
        tried += [length - 1, length, length + 1]
    longest = reader.visible(contexts[-1])
    tried_C = np.unique(
        np.clip(
            tried,
            contexts[0],
            longest,
        )
    )
    begins = np.linspace(
        0,
        len(tokens) - 1 - longest,
        N_BEGINS,
        dtype=np.int64,
    )
    begins_N = np.repeat(begins, len(tried_C))
    targets_N = begins_N + np.tile(tried_C, N_BEGINS)
    direct = replace(reader, one_pass=False)
    exact = read_windows(direct, tokens, begins_N, targets_N)
    require_losses(exact)
    losses = read_windows(reader, tokens, begins_N, targets_N)
    if not _are_close(losses, exact):
        member.require(not _looks_ahead(reader, tokens, longest), LOOKS_AHEAD)
        reader = direct
    difference = float(np.abs(losses - exact).max())
    findings = {**member.findings, "one_pass_difference": difference}
    return replace(member, reader=reader, findings=findings)


def _looks_ahead(reader: WindowReader, tokens: np.ndarray, longest: int) -> bool:
    """Return whether losses in a window's first half change with the tokens in its second half."""
    middle = longest // 2
    targets = np.append(np.arange(1, middle + 1), longest)  # the last one only lengthens the window
    begins = np.zeros_like(targets)
    other_tokens = np.append(tokens[: middle + 1], tokens[middle - longest :])
    losses = read_windows(reader, tokens, begins, targets)
    other_losses = read_windows(reader, other_tokens, begins, targets)
    return not _are_close(losses[:-1], other_losses[:-1])


def _are_close(losses: Array, expected: Array) -> bool:
    """Return whether losses are equal up to float32 rounding."""
    tolerance = 1e-6 + ROUNDING * expected.std()
    return np.allclose(losses, expected, rtol=1e-6, atol=tolerance)
