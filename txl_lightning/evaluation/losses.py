"""Losses of tokens: the state carried from segment to segment, or windows read from a fresh state.

`stream_losses` carries the state from segment to segment. `window_losses` gives every position exactly c tokens of
context (appendix C). Shape letters: B streams or windows, T tokens, C contexts, P positions, N targets, W windows,
U units.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from tqdm import tqdm

from txl_lightning.data.streams import Batch, Streams
from txl_lightning.distributed.ranks import all_gather, rank_and_world_size
from txl_lightning.errors import OptionError
from txl_lightning.model.inference.cached import CachedTransformerXL, can_cache
from txl_lightning.model.language_model import LanguageModel, ScoringModel, SelectiveModel
from txl_lightning.model.transformer_xl import TransformerXL

SEGMENT_TOKENS = 4_096  # of segments without memory that are scored together
# A Transformer-XL's softmax reads the scored tokens only: larger batches need no more memory and take less time.
WINDOW_TOKENS = {"cpu": 2_048, "cpu, TransformerXL": 4_096, "cuda": 16_384}
LONG_WINDOW = 1_024  # tokens; a longer one is read in chunks where the model allows it
FEW_TARGETS_LONG_WINDOW = 2_048  # as the last layer attends from the targets alone
CHUNK = 256
NORMAL_95 = 1.96  # standard errors on either side of a mean

Array = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class TokenLosses:
    """Loss of every scored token of a split, in text order.

    Args:
        nll: [P], in nats.
        positions: [P], position of every token in the split, ascending. In a corpus of unordered sentences a
            `<S>` after the last token ends the last sentence; its position is the length of the split.
        left_out: number of tokens that are not scored, by reason: `first_of_streams`, `trimmed`, `max_segments`.
        seconds: duration.
    """

    nll: NDArray[np.floating]
    positions: Integers
    left_out: dict[str, int]
    seconds: float

    @property
    def mean(self) -> float:
        """Mean loss in nats, summed in float64."""
        return float(self.nll.mean(dtype=np.float64))


@torch.no_grad()
def segment_losses(model: LanguageModel, streams: Streams, max_segments: int | None = None) -> Iterator[Tensor]:
    """Yield the nll of every segment, [B, T], in nats, the state carried from one segment to the next.

    Without memory segments do not depend on each other: neighbours of equal shape are scored in one batch of about
    `SEGMENT_TOKENS` tokens.
    """
    device = device_of(model)
    is_recurrent = getattr(getattr(model, "config", None), "is_recurrent", True)
    most_tokens = 0 if is_recurrent else SEGMENT_TOKENS
    n_streams = 0
    state = None
    for group in _joined_segments(streams, number_of_segments(streams, max_segments), most_tokens):
        tokens = torch.cat([segment.tokens for segment in group]).to(device)
        targets = torch.cat([segment.targets for segment in group]).to(device)
        if len(tokens) != n_streams:
            state = None
            n_streams = len(tokens)
        nll, state = model.score(tokens, targets, state)
        yield from nll.chunk(len(group))


def number_of_segments(streams: Streams, max_segments: int | None) -> int:
    """Return the number of segments to score; None is no limit."""
    if max_segments is None:
        return len(streams)
    return min(len(streams), max_segments)


def _joined_segments(streams: Streams, n_segments: int, most_tokens: int) -> Iterator[list[Batch]]:
    """Yield lists of neighbouring segments of one shape, together at most `most_tokens` unless alone."""
    group: list[Batch] = []
    for index in range(n_segments):
        segment = streams[index]
        n_tokens = segment.tokens.numel()
        fits = bool(group) and segment.tokens.shape == group[0].tokens.shape
        if group and not (fits and (len(group) + 1) * n_tokens <= most_tokens):
            yield group
            group = []
        group.append(segment)
    if group:
        yield group


def stream_losses(model: LanguageModel, streams: Streams, max_segments: int | None = None) -> TokenLosses:
    """Score streams from their start, the state carried from segment to segment, token by token in text order.

    The losses depend on the number of streams, since each starts without context: report both.

    Args:
        model: scores the tokens, at its own lengths.
        streams: streams of the text.
        max_segments: stop after this many segments of each.
    """
    return collect_losses(segment_losses(model, streams, max_segments), streams)


def collect_losses(
    nll_by_segment: Iterable[Tensor], streams: Streams, max_segments: int | None = None, title: str = ""
) -> TokenLosses:
    """Return the losses of segments in text order.

    Args:
        nll_by_segment: nll of every segment, [B, T], in nats.
        streams: streams of the text.
        max_segments: number of segments, for the progress bar; None for all.
        title: name before the progress bar, which a terminal shows; without one there is no bar.
    """
    started = time.perf_counter()
    losses: list[NDArray[np.floating]] = []
    positions: list[Integers] = []
    total = number_of_segments(streams, max_segments)
    silent = None if title else True
    bar = tqdm(nll_by_segment, desc=title, total=total, unit="segment", leave=False, disable=silent)
    for index, nll_BT in enumerate(bar):
        losses.append(nll_BT.cpu().numpy())
        positions.append(streams.positions(index))
    nll = np.concatenate(losses, axis=1).ravel()
    places = np.concatenate(positions, axis=1).ravel()
    if (np.diff(places) < 0).any():  # streams of shuffled sentences
        order = places.argsort()
        nll = nll[order]
        places = places[order]
    left_out = streams.left_out
    left_out["max_segments"] = streams.n_targets - len(nll)
    return TokenLosses(nll, places, left_out, time.perf_counter() - started)


@dataclass(frozen=True)
class WindowReader:
    """Reader of windows of c tokens, each from a fresh state.

    Args:
        model: model with its lengths set for reading windows.
        segment_len: windows are read in segments of this length, the last one complete; None to read them whole.
        limit: only the last `limit` tokens of a longer window are read; None for no limit.
        one_pass: whether the loss of a window's c-th target is that of a window of c tokens.
        batch_tokens: context tokens in a batch; None for the default of the model's device.
    """

    model: LanguageModel
    segment_len: int | None = None
    limit: int | None = None
    one_pass: bool = False
    batch_tokens: int | None = None

    def visible(self, context: int) -> int:
        """Return how many of c tokens the model can see."""
        return context if self.limit is None else min(context, self.limit)

    def windows_at_once(self, context: int) -> int:
        """Return the windows of c tokens in a batch of about `batch_tokens`: fewer than that beyond long windows."""
        device = device_of(self.model).type
        name = "cpu, TransformerXL" if device == "cpu" and isinstance(self.model, TransformerXL) else device
        tokens = self.batch_tokens or WINDOW_TOKENS.get(name, WINDOW_TOKENS["cuda"])
        longest = FEW_TARGETS_LONG_WINDOW if isinstance(self.model, TransformerXL) else LONG_WINDOW
        return max(1, tokens // context * longest // max(context, longest))

    def losses(self, windows_BT: Tensor, contexts: Integers) -> Tensor:
        """Return the losses, [B, C], in nats, of each window's c-th target for every c, ascending.

        Windows have T + 1 tokens, 1 <= c <= T.

        A long window is read in chunks, with keys and values or a recurrent state carried: the memory needed then grows
        with T, not with T².
        """
        T, model = windows_BT.shape[1] - 1, self.model
        size = self.segment_len or T
        edges = [0, *range((T - 1) % size + 1, T + 1, size)]
        dense = len(contexts) == T + 1 - contexts[0]
        longest = LONG_WINDOW if dense or not isinstance(model, TransformerXL) else FEW_TARGETS_LONG_WINDOW
        if self.one_pass and longest < T and (can_cache(model) or isinstance(model, ScoringModel)):
            model = CachedTransformerXL(model, mem_len=T) if can_cache(model) else model
            edges = [*range(0, T, CHUNK), T]
        if len(edges) == 2 and not dense and isinstance(model, SelectiveModel | TransformerXL):
            places_C = torch.as_tensor(contexts - 1, device=windows_BT.device)
            tokens_BT, targets_BC = windows_BT[:, :-1], windows_BT[:, 1:][:, places_C]
            if isinstance(model, SelectiveModel):
                return model.losses_at(tokens_BT, targets_BC, places_C)
            return model.losses(model(tokens_BT, places_Q=places_C)[0], targets_BC)
        state, parts = None, []
        for start, stop in pairwise(edges):
            here = contexts[(start < contexts) & (contexts <= stop)]
            first = int(here[0]) if len(here) else stop  # a segment without a wanted target has one all the same
            nll_BT, state = model.score(windows_BT[:, start:stop], windows_BT[:, first : stop + 1], state)
            parts.append(nll_BT[:, (here - first).tolist()])
        return torch.cat(parts, dim=1)


def window_reader(model: LanguageModel, trained_len: int | None = None, clamp_len: int | None = None) -> WindowReader:
    """Return a reader that gives a model exactly c tokens of context.

    Attention reads the window as one segment in which every token attends to all tokens before it: equal to shorter
    segments with an unlimited memory. The memory before the window is empty, even for `memory_start="zeros"`: attended
    zeros would be context that is no token. One pass over a window then gives the loss of every shorter window with the
    same first token, as for every causal language model.

    Absolute positions are counted from the end of a window, so each context has windows of its own. They mean nothing
    beyond the length they were trained with: without recurrence such a model sees at most that length; with recurrence
    it reads segments of that length, with the memory of its training between them. Variants of the model for which one
    pass is not exact say so (`cannot`) and read such segments with their own lengths. Encodings of distances have no
    limit: sinusoids exist for any distance, and a trained table repeats its farthest row (Table 8 has both beyond their
    trained lengths).

    Args:
        model: any language model. Only `score` is used of a model that is not a TransformerXL.
        trained_len: tokens of a training segment with its extended context; needed where one pass is not exact.
        clamp_len: larger distances share one position; None for the model's own.

    Raises:
        OptionError: `trained_len` is needed and not given, or `clamp_len` is not allowed.
    """
    if not isinstance(model, TransformerXL):
        return WindowReader(model, one_pass=True)
    clamp_len = model.config.clamp_len if clamp_len is None else clamp_len
    plain = {"same_length": False, "ext_len": 0, "memory_start": "empty", "clamp_len": clamp_len}
    own_lengths = "one-pass windows" in model.cannot
    if not own_lengths and not model.config.kind.absolute:
        return WindowReader(model.with_lengths(mem_len=0, **plain), one_pass=True)
    if trained_len is None:
        allowed = f"must be given for encoding={model.config.encoding} or {type(model).__name__}"
        raise OptionError("trained_len", None, allowed)
    if own_lengths:
        return WindowReader(model.with_lengths(clamp_len=clamp_len), segment_len=trained_len)
    if model.config.mem_len:
        return WindowReader(model.with_lengths(**plain), segment_len=trained_len)
    return WindowReader(model.with_lengths(**plain), limit=trained_len)


def read_windows(
    reader: WindowReader,
    tokens: np.ndarray,
    begins_N: Integers,
    targets_N: Integers,
    ends_N: Integers,
    progress: bool = False,
) -> Array:
    """Return -log P(x_t | x_begin … x_{t-1}) of N targets t, [N], in nats; x_end is the last target of a window.

    A reader with a limit begins later: it reads at most `limit` tokens before x_end. In one pass all targets with the
    same begin share a window, and a batch may have windows of several lengths: a shorter one is read farther than
    needed, if need be beyond the split, which its own targets ignore. Otherwise those with the same begin and end share
    one, and a batch has windows of one length. Longest windows are read first. Under `torch.distributed` the windows
    are divided over the ranks: all ranks must call this function, and all get the whole result.

    Args:
        reader: reader from `window_reader`; its model is in evaluation mode during the call.
        tokens: the split, one-dimensional.
        begins_N: first token of each target's context.
        targets_N: t.
        ends_N: last target of each target's window.
        progress: show a progress bar on a terminal.
    """
    if reader.limit is not None:
        begins_N = np.maximum(begins_N, ends_N - reader.limit)
    keys_N = begins_N * (len(tokens) + 1) + (0 if reader.one_pass else ends_N)
    order_N = np.argsort(keys_N, kind="stable")
    contexts_N = targets_N - begins_N
    edges = np.append(np.flatnonzero(np.diff(keys_N[order_N], prepend=-1)), len(order_N))
    begin_W = begins_N[order_N[edges[:-1]]]
    length_W = np.maximum.reduceat((contexts_N if reader.one_pass else ends_N - begins_N)[order_N], edges[:-1])
    rank, world_size = rank_and_world_size()
    own, done = np.argsort(-length_W, kind="stable")[rank::world_size], 0
    losses_N, device = np.zeros(len(order_N)), device_of(reader.model)
    silent = None if progress and rank == 0 else True
    with (
        torch.no_grad(),
        evaluating(reader.model),
        tqdm(total=len(own), unit="window", leave=False, disable=silent) as bar,
    ):
        while done < len(own):
            length = int(length_W[own[done]])
            batch = own[done : done + reader.windows_at_once(length)]
            if not reader.one_pass:
                batch = batch[length_W[batch] == length]
            places = np.minimum(begin_W[batch, None] + np.arange(length + 1), len(tokens) - 1)
            windows_BT = torch.from_numpy(tokens[places].astype(np.int64)).to(device)
            at = np.concatenate([order_N[edges[window] : edges[window + 1]] for window in batch])
            row = np.repeat(np.arange(len(batch)), np.diff(edges)[batch])
            contexts = np.unique(contexts_N[at])
            nll_BC = reader.losses(windows_BT, contexts).cpu().double().numpy()
            losses_N[at] = nll_BC[row, np.searchsorted(contexts, contexts_N[at])]
            done += len(batch)
            bar.update(len(batch))
    total: Array = np.sum(all_gather(losses_N), axis=0)
    return total


def window_losses(
    reader: WindowReader,
    tokens: np.ndarray,
    positions: Integers,
    contexts: Sequence[int],
    begins: Integers | int = 0,
    progress: bool = False,
) -> Array:
    """Return l(c, t) = -log P(x_t | x_{t-c} … x_{t-1}), [C, P], in nats, each window from a fresh state.

    A model with a limit sees the last tokens of the context. In one pass a window from t - c serves all pairs (c, t)
    with the same t - c.

    Args:
        reader: reader from `window_reader`.
        tokens: the split, one-dimensional.
        positions: t of the targets x_t, from `position_blocks` for few windows.
        contexts: c.
        begins: first token that a window of each position may have, [P], below t: the context is shorter there.
        progress: show a progress bar on a terminal.

    Raises:
        ValueError: a position has too few tokens before it.
    """
    visible_C = np.array([reader.visible(context) for context in contexts])
    longest, last = int(visible_C.max()), len(tokens) - 1
    if len(positions) and not longest <= positions.min() <= positions.max() <= last:
        raise ValueError(f"positions must be in {longest} … {last} for a context of {longest} tokens")
    begins_CP = np.maximum(positions - visible_C[:, None], begins)
    targets = np.broadcast_to(positions, begins_CP.shape).ravel()
    losses = read_windows(reader, tokens, begins_CP.ravel(), targets, targets, progress)
    return losses.reshape(begins_CP.shape)


def device_of(model: LanguageModel) -> torch.device:
    """Return the device of a model's parameters; the CPU for a model without any."""
    return next((p.device for p in getattr(model, "parameters", list)()), torch.device("cpu"))


@contextmanager
def evaluating(model: LanguageModel) -> Iterator[None]:
    """Switch all modules to evaluation mode for the block, then restore their modes."""
    training = [module for module in model.modules() if module.training] if isinstance(model, nn.Module) else []
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def text_units(positions: Integers, sentences: Integers | None, block_len: int) -> tuple[Integers, str]:
    """Return the unit of each position, and the name of a unit in words: units are treated as independent.

    Units are the sentences of the corpus if it has any, otherwise blocks of neighbouring tokens. Losses of neighbouring
    tokens are correlated; per-token errors would be too small. Per-block errors are still too small where correlation
    reaches beyond a block. A `<S>` belongs to the sentence before it, whose end it marks.

    Args:
        positions: positions in the split.
        sentences: first position of every sentence, ascending from 0; None without sentences.
        block_len: tokens in a block.
    """
    if sentences is None:
        return positions // block_len, f"blocks of {block_len:,} tokens"
    return np.searchsorted(sentences, positions, side="left") - 1, "sentences"


def standard_error(values_P: NDArray[np.floating], units_P: Integers) -> tuple[float | None, int]:
    """Return the standard error of the mean of P values, correlated within units, and the number of units, U.

        m = Σ_u s_u / Σ_u n_u        Var m = U / (U - 1) · Σ_u (s_u - m n_u)² / P²

    s_u is the sum and n_u the number of the values of unit u: the linearised ratio estimator, for units of any
    length. The error of a single unit is None.
    """
    sums_U = np.bincount(units_P, weights=values_P).astype(np.float64)
    counts_U = np.bincount(units_P)
    n_units = int((counts_U > 0).sum())
    if n_units < 2:
        return None, n_units
    mean = sums_U.sum() / counts_U.sum()
    deviations_U = sums_U - mean * counts_U
    variance = n_units / (n_units - 1) * float((deviations_U**2).sum())
    return math.sqrt(variance) / len(values_P), n_units
