"""Loss by the place of a target in its window, beyond the length of training too."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from txl_lightning.distributed.ranks import all_gather, rank_and_world_size
from txl_lightning.evaluation.recl.effective_context import Array
from txl_lightning.evaluation.recl.loss_by_context import mean_and_error
from txl_lightning.evaluation.scoring.device import device_of
from txl_lightning.evaluation.scoring.windows import WindowReader, evaluating, windows_at_once

Integers = NDArray[np.int64]

SINGLE = 16  # first positions, each in a bin of its own


def position_losses(
    reader: WindowReader, tokens: np.ndarray, ends: Integers, length: int, batch_tokens: int | None = None
) -> Array:
    """Return the loss, [T, W], in nats, of the p-th target, p = 1 … T, of each of W windows read from a fresh state.

    Window w reads x_{t-T} … x_{t-1}; its p-th target has the p tokens of the window before it. T is `length`, or the
    tokens that the model sees. Under `torch.distributed` the windows are divided over the ranks: all ranks must call
    this function, and all get the whole result.

    Args:
        reader: reader from `window_reader`; its model is in evaluation mode during the call.
        tokens: the split, one-dimensional.
        ends: t, the last target of each window.
        length: tokens of a window.
        batch_tokens: context tokens in a batch; None for the default of the model's device.
    """
    length = reader.visible(length)
    rank, world_size = rank_and_world_size()
    own, device = ends[rank::world_size], device_of(reader.model)
    part_WT = np.empty((len(own), length))
    n_windows = windows_at_once(length, device, batch_tokens)
    with torch.no_grad(), evaluating(reader.model):
        for start in range(0, len(own), n_windows):
            places = own[start : start + n_windows, None] + np.arange(-length, 1)
            windows_BT = torch.from_numpy(tokens[places].astype(np.int64)).to(device)
            if reader.one_pass:
                nll_BT = reader.losses_at(windows_BT, range(1, length + 1))
            else:
                nll_BT = reader.last_losses(windows_BT, length)
            part_WT[start : start + n_windows] = nll_BT.double().cpu().numpy()
    losses_WT = np.empty((len(ends), length))
    for other, of_rank in enumerate(all_gather(part_WT)):
        losses_WT[other::world_size] = of_rank
    return losses_WT.T


def binned_by_position(losses_TW: Array, blocks_W: Integers) -> dict[str, Any]:
    """Return the mean loss of bins of positions, in nats, with its standard error over the blocks of the windows.

    The first 16 positions have a bin each; a later bin is an eighth as long as the positions before it.
    """
    T = len(losses_TW)
    edges = [1]
    while edges[-1] <= T:
        edges.append(edges[-1] + (1 if edges[-1] <= SINGLE else edges[-1] // 8))
    firsts, lasts = edges[:-1], [min(edge - 1, T) for edge in edges[1:]]
    binned = np.stack([losses_TW[a - 1 : b].mean(axis=0) for a, b in zip(firsts, lasts, strict=True)])
    nll, error = mean_and_error(binned, blocks_W)
    return {
        "first": firsts,
        "last": lasts,
        "nll": nll.tolist(),
        "nll_standard_error": error.tolist(),
        "windows": losses_TW.shape[1],
    }
