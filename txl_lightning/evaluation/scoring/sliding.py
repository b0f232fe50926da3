"""Sliding-window scoring: context recomputed from a fresh state for every few tokens, as vanilla models need it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch
from tqdm import tqdm

from txl_lightning.errors import require
from txl_lightning.evaluation.scoring.device import device_of
from txl_lightning.evaluation.scoring.token_losses import TokenLosses
from txl_lightning.evaluation.scoring.windows import WindowReader, evaluating, windows_at_once


def sliding_losses(
    reader: WindowReader,
    tokens: np.ndarray,
    window: int,
    stride: int = 1,
    max_windows: int | None = None,
    batch_tokens: int | None = None,
) -> TokenLosses:
    """Score every token of a split but the first: nll_t = -log P(x_t | tokens before x_t in its window), in nats.

    The split x_0 … x_{n-1} is one stream. Window k reads at most L tokens, from a fresh state,

        x_{max(0, b-L)} … x_{b-1},        b = min((k+1) S, n - 1),

    and is scored on the tokens x_{kS+1} … x_b: every token once. A token has L - S + 1 to L tokens of context, or
    all tokens before it near the start of the stream. With S = 1 a token has exactly L, and the query before it
    attends to L keys, its own included: the vanilla model of the paper (section 3.1, Table 9). Windows of equal
    length are scored in batches; the losses do not depend on the batches.

    Args:
        reader: reader of the model, from `window_reader`; its limit caps L.
        tokens: the split, one-dimensional.
        window: L, the attention length in tokens.
        stride: S, tokens scored in each window.
        max_windows: stop after this many windows.
        batch_tokens: context tokens in a batch; None for the default of the model's device.

    Raises:
        OptionError: a length is below 1, S is above L (or above the tokens of L that the model sees), or n is below 2.
    """
    started = time.perf_counter()
    longest = visible_window(reader, window, stride)
    require(len(tokens) >= 2, "split", f"{len(tokens)} tokens", "needs at least 2")
    firsts = np.arange(0, len(tokens) - 1, stride, dtype=np.int64)[:max_windows]
    ends = np.minimum(firsts + stride, len(tokens) - 1)
    device = device_of(reader.model)
    parts = []
    with (
        torch.no_grad(),
        evaluating(reader.model),
        tqdm(total=len(ends), unit="window", leave=False, disable=None) as bar,
    ):
        for batch in _batches(ends - firsts, np.minimum(ends, longest), windows_at_once(longest, device, batch_tokens)):
            last, n = ends[batch], int(ends[batch.start] - firsts[batch.start])
            context = min(int(last[0]), longest)
            windows_BT = torch.from_numpy(tokens[last[:, None] + np.arange(-context, 1)].astype(np.int64))
            parts.append(reader.last_losses(windows_BT.to(device), n).flatten().cpu().numpy())
            bar.update(len(last))
    nll = np.concatenate(parts)
    left_out = {"first_of_streams": 1, "trimmed": 0, "max_segments": len(tokens) - 1 - len(nll)}
    return TokenLosses(nll, np.arange(1, len(nll) + 1), left_out, time.perf_counter() - started)


def visible_window(reader: WindowReader, window: int, stride: int) -> int:
    """Return the number of tokens of a window that the model sees.

    Raises:
        OptionError: the window is below 1, or the stride is not in 1 … the tokens that the model sees.
    """
    require(window >= 1, "window", window, "must be an integer >= 1")
    longest = reader.visible(window)
    allowed = f"must be in 1 … {longest}, the tokens of a window that the model sees"
    require(1 <= stride <= longest, "stride", stride, allowed)
    return longest


def _batches(n_targets: np.ndarray, n_tokens: np.ndarray, largest: int) -> Iterator[slice]:
    """Yield slices of at most `largest` neighbouring windows with equal lengths and numbers of targets."""
    changes = np.flatnonzero((np.diff(n_targets) != 0) | (np.diff(n_tokens) != 0)) + 1
    edges = [0, *changes.tolist(), len(n_targets)]
    for start, stop in pairwise(edges):
        for first in range(start, stop, largest):
            yield slice(first, min(first + largest, stop))
