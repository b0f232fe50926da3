"""Losses of spans of tokens, each with a context of its own; windows that begin at one token are read once."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from txl_lightning.distributed.ranks import all_gather, rank_and_world_size
from txl_lightning.evaluation.scoring.device import device_of
from txl_lightning.evaluation.scoring.windows import Array, WindowReader, evaluating, windows_at_once

Integers = NDArray[np.int64]


def span_losses(
    reader: WindowReader,
    tokens: np.ndarray,
    begins: Integers,
    firsts: Integers,
    stops: Integers,
    batch_tokens: int | None = None,
) -> Array:
    """Return the loss of each of N spans of tokens, [N], in nats.

        loss = Σ_{first <= k < stop} -log P(x_k | x_{k-1}, …, x_begin)

    A model with a limit begins later: it reads at most `limit` tokens before the last one of the span. If
    `reader.one_pass`, all spans with one `begin` share a window; otherwise each distinct span has one of its own. Under
    `torch.distributed` the windows are divided over the ranks: all ranks must call this function.

    Args:
        reader: reader from `window_reader`; its model is in evaluation mode during the call.
        tokens: the split, one-dimensional.
        begins: first token of the context.
        firsts: first token of the span, after `begins`.
        stops: token after the span.
        batch_tokens: context tokens in a batch; None for the default of the model's device.
    """
    if reader.limit is not None:
        begins = np.minimum(np.maximum(begins, stops - 1 - reader.limit), firsts - 1)
    spans_N3 = np.stack([begins, firsts, stops], axis=1)
    keys, of_window_N = np.unique(spans_N3[:, :1] if reader.one_pass else spans_N3, axis=0, return_inverse=True)
    of_window_N = of_window_N.reshape(-1)
    lengths_W = np.zeros(len(keys), dtype=np.int64)
    np.maximum.at(lengths_W, of_window_N, stops - 1 - begins)
    longest_first = np.argsort(-lengths_W, kind="stable")
    rank, world_size = rank_and_world_size()
    losses_N = np.zeros(len(begins))
    by_window = np.split(np.argsort(of_window_N, kind="stable"), np.cumsum(np.bincount(of_window_N))[:-1])
    own, done = longest_first[rank::world_size], 0
    device = device_of(reader.model)
    with torch.no_grad(), evaluating(reader.model):
        while done < len(own):
            length = int(lengths_W[own[done]])
            batch = own[done : done + windows_at_once(length, device, batch_tokens)]
            if not reader.one_pass:  # segments and positions count from the end of a window: one length at a time
                batch = batch[lengths_W[batch] == length]
            places = np.minimum(keys[batch, :1] + np.arange(length + 1), len(tokens) - 1)
            windows_BT = torch.from_numpy(tokens[places].astype(np.int64)).to(device)
            if reader.one_pass:
                nll_BT = reader.losses_at(windows_BT, range(1, length + 1))
            else:
                nll_BT = reader.last_losses(windows_BT, length)
            sums_BT = np.pad(nll_BT.double().cpu().numpy().cumsum(axis=1), ((0, 0), (1, 0)))
            for row, window in enumerate(batch):
                here = by_window[window]
                first, stop = firsts[here] - begins[here] - 1, stops[here] - begins[here] - 1
                losses_N[here] = sums_BT[row, stop] - sums_BT[row, first]
            done += len(batch)
    losses: Array = np.sum(all_gather(losses_N), axis=0)
    return losses
