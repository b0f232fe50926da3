"""Losses l(c, t) of a grid of contexts at many positions, in one pass over windows where that is exact."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from txl_lightning.distributed.ranks import all_gather, rank_and_world_size
from txl_lightning.evaluation.scoring.device import device_of
from txl_lightning.evaluation.scoring.windows import (
    Array,
    WindowReader,
    check_positions,
    context_losses,
    evaluating,
    windows_at_once,
)
from txl_lightning.model.transformer_xl import TransformerXL

# A Transformer-XL's softmax reads the scored tokens only, so larger batches than those of other models need no more
# memory. They take a tenth less time, in bfloat16 a fifth.
CPU_TOKENS = 4_096


def loss_grid(
    reader: WindowReader,
    tokens: np.ndarray,
    positions: NDArray[np.int64],
    contexts: Sequence[int],
    batch_tokens: int | None = None,
) -> Array:
    """Return l(c, t), [C, P], in nats, with exactly c tokens of context, or as many as the reader's limit.

    If `reader.one_pass`, a window from t - c gives l(c, t) at its c-th target, for every c: the windows of all pairs
    (c, t) with the same t - c are one. Otherwise every pair has a window of its own (`context_losses`). Both ways
    give the same losses. Under `torch.distributed` the windows are divided over the ranks: all ranks must call this
    function, and all get the whole result.

    Args:
        reader: reader from `window_reader`; its model is in evaluation mode during the call.
        tokens: the split, one-dimensional.
        positions: t of the targets x_t, from `position_blocks` for few windows.
        contexts: c.
        batch_tokens: context tokens in a batch; None for the default of the model's device.

    Raises:
        ValueError: a position has too few tokens before it.
    """
    visible = [reader.visible(context) for context in contexts]
    distinct = np.unique(visible)
    check_positions(positions, int(distinct[-1]), len(tokens))
    if reader.one_pass:
        losses_CP = _one_pass(reader, tokens, positions, distinct, batch_tokens)
    else:
        direct = [context_losses(reader, tokens, positions, context, batch_tokens) for context in distinct.tolist()]
        losses_CP = np.stack(direct)
    return losses_CP[np.searchsorted(distinct, visible)]


def _one_pass(
    reader: WindowReader,
    tokens: np.ndarray,
    positions: NDArray[np.int64],
    contexts: NDArray[np.int64],
    batch_tokens: int | None,
) -> Array:
    """Read a window from every start t - c once, as far as its longest context; W windows, longest first."""
    C, P = len(contexts), len(positions)
    starts_CP = positions - contexts[:, None]
    starts_W, window_CP = np.unique(starts_CP, return_inverse=True)
    window_CP = window_CP.reshape(C, P)
    lengths_W = np.zeros(len(starts_W), dtype=np.int64)
    np.maximum.at(lengths_W, window_CP, contexts[:, None])
    longest_first = np.argsort(-lengths_W, kind="stable")

    rank, world_size = rank_and_world_size()
    own = longest_first[rank::world_size]
    device = device_of(reader.model)
    if batch_tokens is None and device.type == "cpu" and isinstance(reader.model, TransformerXL):
        batch_tokens = CPU_TOKENS
    part = np.full((len(own), C), np.nan)
    done = 0
    with torch.no_grad(), evaluating(reader.model):
        while done < len(own):
            length = int(lengths_W[own[done]])
            batch = own[done : done + windows_at_once(length, device, batch_tokens)]
            # A shorter window is read farther than needed, if need be beyond the split: its own targets ignore that.
            places = np.minimum(starts_W[batch, None] + np.arange(length + 1), len(tokens) - 1)
            windows_BT = torch.from_numpy(tokens[places].astype(np.int64)).to(device)
            within = contexts[contexts <= length]
            losses_BC = reader.losses_at(windows_BT, within.tolist())
            part[done : done + len(batch), : len(within)] = losses_BC.cpu().double().numpy()
            done += len(batch)
    losses_WC = np.empty((len(starts_W), C))
    for other, of_rank in enumerate(all_gather(part)):
        losses_WC[longest_first[other::world_size]] = of_rank
    losses_CP: Array = losses_WC[window_CP, np.arange(C)[:, None]]
    return losses_CP
