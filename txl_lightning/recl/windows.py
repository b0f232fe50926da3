"""Losses with exactly c context tokens (appendix C): windows, each read from a fresh state.

Shape letters: B windows, T tokens, C contexts, P positions, N targets, W windows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from txl_lightning.errors import require
from txl_lightning.evaluation.losses import device_of, evaluating, with_progress
from txl_lightning.model.baselines import RecurrentLanguageModel
from txl_lightning.model.inference.cached import CachedTransformerXL, can_cache
from txl_lightning.model.language_model import LanguageModel, SelectiveModel
from txl_lightning.model.positions import without_marks
from txl_lightning.model.transformer_xl import TransformerXL
from txl_lightning.ranks import all_gather, rank_and_world_size
from txl_lightning.recl.effective_context import Array, Integers

BATCH_TOKENS = 2_048  # on the CPU
TRANSFORMER_XL_TOKENS = 4_096  # on the CPU: its softmax reads the scored tokens only
GPU_TOKENS = 16_384
LONG_WINDOW = 2_048  # tokens; a longer one is read in chunks where the model allows it
CHUNK = 256
LARGEST = 700.0  # nats; a perplexity of a larger loss would overflow
ROUNDING = 1e-3  # nats, of a loss of 0


@dataclass(frozen=True)
class WindowReader:
    """Reader for windows with c tokens, each from a fresh state.

    Args:
        model: model with its lengths set for reading windows.
        segment_len: windows are read in segments of this length, the last one complete; None to read them whole.
        limit: only the last `limit` tokens in a longer window are read; None for no limit.
        one_pass: whether the c-th target in a window has the same loss as in a window with c tokens.
    """

    model: LanguageModel
    segment_len: int | None = None
    limit: int | None = None
    one_pass: bool = False

    def visible(self, context: int) -> int:
        """Return how many among c tokens the model can see."""
        if self.limit is None:
            return context
        return min(context, self.limit)

    def windows_at_once(self, context: int) -> int:
        """Return how many windows with c tokens make a batch."""
        tokens = BATCH_TOKENS
        if isinstance(self.model, TransformerXL):
            tokens = TRANSFORMER_XL_TOKENS
        if device_of(self.model).type != "cpu":
            tokens = GPU_TOKENS
        return max(1, tokens // context)

    def losses(self, windows_BT: Tensor, contexts: Integers) -> Tensor:
        """Return the losses, [B, C], in nats: for each window its c-th target, for every c, ascending.

        Windows have T + 1 tokens, 1 <= c <= T. A long window is read in chunks, with keys and
        values or a recurrent state carried: the memory needed then grows with T, not with T².
        """
        T = windows_BT.shape[1] - 1
        model = self.model
        size = self.segment_len or T
        edges = [0, *range((T - 1) % size + 1, T + 1, size)]
        is_long = self.one_pass and T > LONG_WINDOW
        leaves_targets_out = len(contexts) <= T - contexts[0]
        if is_long and can_cache(model):
            model = CachedTransformerXL(model, mem_len=T)
            edges = [*range(0, T, CHUNK), T]
        elif is_long and isinstance(model, RecurrentLanguageModel):
            edges = [*range(0, T, CHUNK), T]
        elif leaves_targets_out and size >= T and isinstance(model, SelectiveModel | TransformerXL):
            return _losses_at(model, windows_BT, contexts)
        return _losses_of_segments(model, windows_BT, contexts, edges)


def _losses_at(
    model: SelectiveModel | TransformerXL,
    windows_BT: Tensor,
    contexts: Integers,
) -> Tensor:
    """Score only the wanted targets in whole windows."""
    places_C = torch.as_tensor(contexts - 1, device=windows_BT.device)
    tokens_BT = windows_BT[:, :-1]
    targets_BC = without_marks(windows_BT[:, 1:][:, places_C])
    if isinstance(model, SelectiveModel):
        return model.losses_at(tokens_BT, targets_BC, places_C)
    hidden_BCD, _ = model(tokens_BT, places_Q=places_C)
    return model.losses(hidden_BCD, targets_BC)


def _losses_of_segments(
    model: LanguageModel,
    windows_BT: Tensor,
    contexts: Integers,
    edges: list[int],
) -> Tensor:
    """Read windows from edge to edge, the state carried, and score from the first context on."""
    targets_BT = without_marks(windows_BT)
    state = None
    parts = []
    for start, stop in pairwise(edges):
        first = min(stop, max(start + 1, int(contexts[0])))  # a segment before it has one target
        wanted_BT = targets_BT[:, first : stop + 1]
        nll_BT, state = model.score(
            windows_BT[:, start:stop],
            wanted_BT,
            state,
        )
        if nll_BT.shape != wanted_BT.shape:
            raise ValueError("score must return a loss for each target, and a state")
        parts.append(nll_BT)
    from_the_end = contexts - windows_BT.shape[1]
    return torch.cat(parts, dim=1)[:, from_the_end.tolist()]


def window_reader(
    model: LanguageModel,
    trained_len: int | None = None,
    clamp_len: int | None = None,
) -> WindowReader:
    """Return a reader that gives a model exactly c context tokens.

    Attention reads the window as one segment in which every token attends to all tokens before it: equal to shorter
    segments with an unlimited memory. The memory before the window is empty, even for `memory_start="zeros"`: attended
    zeros would be context without tokens. One pass over a window then gives the loss for every shorter window with the
    same first token, as in every causal language model.

    Absolute positions are counted from a window's end, so each context needs separate windows. They mean nothing beyond
    the length they were trained with: without recurrence such a model sees at most that length; with recurrence it
    reads segments of that length, with training's memory between them. Model variants for which one pass is not exact
    say so (`cannot`) and read such segments with their lengths. Encodings of distances have no limit: sinusoids exist
    for any distance, and a trained table repeats its farthest row (Table 8 has both beyond their trained lengths).

    Args:
        model: any language model. For a model that is not a TransformerXL only `score` is used.
        trained_len: tokens in a training segment with its extended context; needed where one pass is not exact.
        clamp_len: larger distances share one position; None for the model's value.

    Raises:
        OptionError: `trained_len` is needed and not given, or `clamp_len` is not allowed.
    """
    if not isinstance(model, TransformerXL):
        return WindowReader(model, one_pass=True)
    config = model.config
    if clamp_len is None:
        clamp_len = config.clamp_len
    reads_segments = "one-pass windows" in model.cannot
    one_pass = not reads_segments and not config.kind.absolute
    allowed = f"must be given for encoding={config.encoding} or {type(model).__name__}"
    require(one_pass or trained_len is not None, "trained_len", None, allowed)
    if reads_segments:
        return WindowReader(model.with_lengths(clamp_len=clamp_len), segment_len=trained_len)
    mem_len = 0 if one_pass else config.mem_len
    model = model.with_lengths(
        mem_len=mem_len,
        same_length=False,
        ext_len=0,
        memory_start="empty",
        clamp_len=clamp_len,
    )
    if one_pass:
        return WindowReader(model, one_pass=True)
    if mem_len:
        return WindowReader(model, segment_len=trained_len)
    return WindowReader(model, limit=trained_len)


def read_windows(
    reader: WindowReader,
    tokens: np.ndarray,
    begins_N: Integers,
    targets_N: Integers,
    title: str = "",
) -> Array:
    """Return -log P(x_t | x_begin … x_{t-1}) for N targets t, [N], in nats.

    In one pass all targets with the same begin share a window, and a batch may mix
    window lengths: a shorter one is read farther than needed, if need be beyond the split, and its targets ignore the
    surplus. Otherwise each target has a window, and all windows in a batch have one length. The ranks share the
    windows.

    Args:
        reader: reader from `window_reader`.
        tokens: the split, one-dimensional.
        begins_N: first token of each target's context.
        targets_N: t.
        title: title for the progress that the first rank shows; "" for none.
    """
    contexts_N = targets_N - begins_N
    ends_N = targets_N * (not reader.one_pass)
    keys_N = begins_N * len(tokens) + ends_N
    keys_W, window_N, sizes_W = np.unique(
        keys_N,
        return_inverse=True,
        return_counts=True,
    )
    begins_W = keys_W // len(tokens)
    lengths_W = np.zeros_like(begins_W)
    np.maximum.at(lengths_W, window_N, contexts_N)
    targets_of = np.split(
        np.argsort(window_N, kind="stable"),
        np.cumsum(sizes_W),
    )

    rank, world_size = rank_and_world_size()
    order_W = np.argsort(-lengths_W, kind="stable")[rank::world_size]
    batches: Iterable[Integers] = _batches(reader, order_W, lengths_W)
    if title and rank == 0:
        batches = list(batches)
        batches = with_progress(batches, len(batches), title, "part")
    losses_N = np.zeros(len(targets_N))
    device = device_of(reader.model)
    with torch.no_grad(), evaluating(reader.model):
        for batch in batches:
            places_BT = begins_W[batch, None] + np.arange(lengths_W[batch].max() + 1)
            places_BT = np.minimum(places_BT, len(tokens) - 1)
            windows_BT = torch.from_numpy(tokens[places_BT].astype(np.int64))
            targets = np.concatenate([targets_of[window] for window in batch])
            contexts, columns = np.unique(contexts_N[targets], return_inverse=True)
            rows = np.repeat(np.arange(len(batch)), sizes_W[batch])
            nll_BC = reader.losses(windows_BT.to(device), contexts)
            losses_N[targets] = nll_BC.cpu().double().numpy()[rows, columns]
    return np.array(all_gather(losses_N)).sum(axis=0)


def _batches(
    reader: WindowReader,
    order_W: Integers,
    lengths_W: Integers,
) -> Iterator[Integers]:
    """Yield windows, the longest first, in batches; each with one length where one pass is not exact."""
    while len(order_W):
        length = int(lengths_W[order_W[0]])
        batch = order_W[: reader.windows_at_once(length)]
        if not reader.one_pass:
            batch = batch[lengths_W[batch] == length]
        yield batch
        order_W = order_W[len(batch) :]


def window_losses(
    reader: WindowReader,
    tokens: np.ndarray,
    positions: Integers,
    contexts: Sequence[int],
    begins: Integers | int = 0,
    title: str = "",
) -> Array:
    """Return l(c, t) = -log P(x_t | x_{t-c} … x_{t-1}), [C, P], in nats, each window from a fresh state.

    A model with a limit sees the context's last tokens. In one pass a window from t - c serves all pairs (c, t) with
    the same t - c.

    Args:
        reader: reader from `window_reader`.
        tokens: the split, one-dimensional.
        positions: positions t of the targets x_t, from `position_blocks` for few windows.
        contexts: c.
        begins: first token that each position's window may have, [P], below t: the context is shorter there.
        title: title for the progress to show; "" for none.

    Raises:
        ValueError: a position has too few tokens before it; the model's losses have another shape or are not -log P.
    """
    visible_C = np.array([reader.visible(context) for context in contexts])
    longest = visible_C.max()
    last = len(tokens) - 1
    if positions.min() < longest or positions.max() > last:
        raise ValueError(f"positions must be in {longest} … {last} for contexts of {longest}")
    begins_CP = np.maximum(positions - visible_C[:, None], begins)
    targets_CP = np.broadcast_to(positions, begins_CP.shape)
    losses_N = read_windows(
        reader,
        tokens,
        begins_CP.ravel(),
        targets_CP.ravel(),
        title,
    )
    require_losses(losses_N)
    return losses_N.reshape(begins_CP.shape)


def require_losses(losses_N: Array) -> None:
    """Raise a ValueError unless all losses are -log P, up to rounding."""
    are_losses = (losses_N > -ROUNDING) & (losses_N < LARGEST)
    if not are_losses.all():
        raise ValueError(f"its losses are not -log P in 0 … {LARGEST:g} nats")
