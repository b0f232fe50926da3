"""Check a model from elsewhere: one pass over a window must give the same losses as windows with exactly c tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from txl_lightning.recl.effective_context import Array
from txl_lightning.recl.models import Member
from txl_lightning.recl.windows import read_windows, require_losses

N_BEGINS = 3  # windows for each length
ROUNDING = 1e-3  # share of the losses' standard deviation, in float32


def checked(member: Member, tokens: np.ndarray, contexts: Sequence[int]) -> Member:
    """Return a model from elsewhere as it can be read exactly; a run's model as it is.

    One pass must give the same losses as fresh windows with exactly c tokens: at the shortest, a middle and the longest
    context, and around every length between them in the model's `window_lengths` (for Hugging Face the integers in the
    config). Otherwise `one_pass` becomes false: each target has its window, ending before it, so no loss can depend on
    the tokens after its target.

    Args:
        member: the model.
        tokens: its text, longer than the longest context.
        contexts: grid of contexts.

    Raises:
        ValueError: its losses have another shape or are not -log P.
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
        reader = direct
    difference = float(np.abs(losses - exact).max())
    findings = {**member.findings, "one_pass_difference": difference}
    return replace(member, reader=reader, findings=findings)


def _are_close(losses: Array, expected: Array) -> bool:
    """Return whether losses are equal up to float32 rounding."""
    tolerance = 1e-6 + ROUNDING * expected.std()
    return np.allclose(losses, expected, rtol=1e-6, atol=tolerance)
