"""Losses with exactly c tokens of context: l(c, t) = -log P(x_t | x_{t-1}, …, x_{t-c}) (appendix C)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from txl_lightning.distributed.ranks import all_gather, rank_and_world_size
from txl_lightning.errors import OptionError
from txl_lightning.evaluation.scoring.device import device_of
from txl_lightning.model.language_model import LanguageModel, SelectiveModel
from txl_lightning.model.transformer_xl import TransformerXL

BATCH_TOKENS = {"cpu": 2_048, "cuda": 16_384}
LONG_WINDOW = 1_024
UNLIMITED = 2**31

Array = NDArray[np.float64]


@dataclass(frozen=True)
class WindowReader:
    """Reader of windows of c tokens, each from a fresh state, for the losses of their last tokens.

    Args:
        model: model with its lengths set for reading windows.
        segment_len: longer windows are read in segments, the last of which is complete; None for one segment.
        limit: only the last `limit` tokens of a longer window are read; None for no limit.
        one_pass: whether the loss of a window's c-th target is that of a window of c tokens: `losses_at` is exact.
    """

    model: LanguageModel
    segment_len: int | None = None
    limit: int | None = None
    one_pass: bool = False

    def visible(self, context: int) -> int:
        """Return how many of c tokens the model can see."""
        return context if self.limit is None else min(context, self.limit)

    def last_loss(self, windows_BT: Tensor) -> Tensor:
        """Return the loss, [B], in nats, of each window's last token given the c = T - 1 tokens before it."""
        return self.last_losses(windows_BT, 1)[:, 0]

    def last_losses(self, windows_BT: Tensor, n: int) -> Tensor:
        """Return the losses, [B, n], in nats, of each window's last n tokens, 1 <= n < T, given those before."""
        context = windows_BT.shape[1] - 1
        longest = self.segment_len or context
        state: Any = None
        losses = []
        for stop in range((context - 1) % longest + 1, context + 1, longest):
            start = max(0, stop - longest)
            n_here = min(n - (context - stop), stop - start)
            # An early segment has no scored target; scoring one updates the state all the same.
            targets = windows_BT[:, stop + 1 - max(n_here, 1) : stop + 1]
            nll, state = self.model.score(windows_BT[:, start:stop], targets, state)
            if n_here > 0:
                losses.append(nll)
        return torch.cat(losses, dim=1)

    def losses_at(self, windows_BT: Tensor, contexts: Sequence[int]) -> Tensor:
        """Return the losses, [B, C], in nats, of each window's c-th target, 1 <= c < T, for every c of `contexts`."""
        places = torch.as_tensor(contexts, device=windows_BT.device) - 1
        tokens_BT, targets_BT = windows_BT[:, :-1], windows_BT[:, 1:]
        if isinstance(self.model, SelectiveModel):
            return self.model.losses_at(tokens_BT, targets_BT[:, places], places)
        if not isinstance(self.model, TransformerXL):
            return self.model.score(tokens_BT, targets_BT, None)[0][:, places]
        # A large vocabulary makes the softmax expensive: it gets no other targets.
        return self.model.losses(self.model(tokens_BT, places_Q=places)[0], targets_BT[:, places])


def window_reader(model: LanguageModel, trained_len: int | None = None, clamp_len: int | None = None) -> WindowReader:
    """Return a reader that gives a model exactly c tokens of context.

    Attention reads the window as one segment in which every token attends to all tokens before it: equal to
    shorter segments with an unlimited memory. The memory before the window is empty, even for
    `memory_start="zeros"`: attended zeros would be context that is no token.

    Absolute positions mean nothing beyond the length they were trained with. Without recurrence such a model
    sees at most that length; with recurrence it reads segments of that length, with the memory of its training
    between them. Encodings of distances have no limit: sinusoids exist for any distance, and a trained table
    repeats its farthest row (Table 8 has both beyond their trained lengths).

    A model with a compressed memory reads segments of its training's length: with an unlimited memory in one segment
    nothing would be compressed. `mem_len` is that of training, and all tokens before it are compressed.

    One pass is exact for encodings of distances, recurrent models and every other causal language model, but not for
    absolute positions and compressed memories: positions, and the segments that decide what is compressed, are counted
    from the end of a window, so each context needs windows of its own.

    Args:
        model: any language model. Only `score` is used of a model that is not a TransformerXL.
        trained_len: tokens of a training segment with its extended context; needed for absolute positions and for
            a compressed memory.
        clamp_len: larger distances share one position; None for the model's own.

    Raises:
        OptionError: absolute positions or a compressed memory without `trained_len`, or `clamp_len` is not allowed.
    """
    if not isinstance(model, TransformerXL):
        return WindowReader(model, one_pass=True)
    clamp_len = model.config.clamp_len if clamp_len is None else clamp_len
    plain = {"same_length": False, "ext_len": 0, "memory_start": "empty", "clamp_len": clamp_len}
    if not model.config.kind.absolute and not model.config.compresses:
        return WindowReader(model.with_lengths(mem_len=0, **plain), one_pass=True)
    if trained_len is None:
        needed = f"encoding={model.config.encoding} and compression={model.config.compression}"
        raise OptionError("trained_len", None, f"must be given for {needed}")
    if model.config.compresses:
        return WindowReader(model.with_lengths(compressed_len=UNLIMITED, **plain), segment_len=trained_len)
    if model.config.mem_len:
        return WindowReader(model.with_lengths(**plain), segment_len=trained_len)
    return WindowReader(model.with_lengths(**plain), limit=trained_len)


def context_losses(
    reader: WindowReader,
    tokens: np.ndarray,
    positions: NDArray[np.int64],
    context: int,
    batch_tokens: int | None = None,
) -> Array:
    """Return l(c, t), [P], in nats, with exactly c tokens of context, or as many as the reader's limit.

    Every window starts from a fresh state. Windows are scored in batches of about `batch_tokens` tokens (fewer
    for windows beyond 1,024 tokens, whose attention grows with c²). Under `torch.distributed` the positions are
    divided over the ranks: all ranks must call this function, and all get the whole result.

    Args:
        reader: reader from `window_reader`; its model is in evaluation mode during the call.
        tokens: the split, one-dimensional.
        positions: t of the targets x_t.
        context: c.
        batch_tokens: context tokens in a batch; None for the default of the model's device.

    Raises:
        ValueError: a position has fewer than c tokens before it.
    """
    context = reader.visible(context)
    check_positions(positions, context, len(tokens))
    rank, world_size = rank_and_world_size()
    own = positions[rank::world_size]
    device = device_of(reader.model)
    part = np.empty(len(own))
    n_windows = windows_at_once(context, device, batch_tokens)
    with torch.no_grad(), evaluating(reader.model):
        for start in range(0, len(own), n_windows):
            ends = own[start : start + n_windows, None]
            windows_BT = torch.from_numpy(tokens[ends + np.arange(-context, 1)].astype(np.int64)).to(device)
            part[start : start + n_windows] = reader.last_loss(windows_BT).cpu().double().numpy()
    losses = np.empty(len(positions))
    for other, of_rank in enumerate(all_gather(part)):
        losses[other::world_size] = of_rank
    return losses


def check_positions(positions: NDArray[np.int64], context: int, n_tokens: int) -> None:
    """Raise ValueError unless every position is in the split and has `context` tokens before it."""
    if len(positions) and not context <= positions.min() <= positions.max() < n_tokens:
        raise ValueError(f"positions must be in {context} … {n_tokens - 1} for a context of {context} tokens")


def windows_at_once(context: int, device: torch.device, batch_tokens: int | None = None) -> int:
    """Return the number of windows in a batch of about `batch_tokens` tokens, fewer for windows beyond 1,024 tokens."""
    batch_tokens = batch_tokens or BATCH_TOKENS.get(device.type, BATCH_TOKENS["cuda"])
    return max(1, batch_tokens // context * LONG_WINDOW // max(context, LONG_WINDOW))


@contextmanager
def evaluating(model: LanguageModel) -> Iterator[None]:
    """Switch all modules to evaluation mode for the block, then restore their modes."""
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    modes = [module.training for module in modules]
    for module in modules:
        module.training = False
    try:
        yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode
