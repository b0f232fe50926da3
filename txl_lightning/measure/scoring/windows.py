"""Losses of windows read from a fresh state, with exactly c tokens of context (appendix C) or a sliding window."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from tqdm import tqdm

from txl_lightning.distributed.ranks import all_gather, rank_and_world_size
from txl_lightning.errors import OptionError, require
from txl_lightning.measure.scoring.token_losses import TokenLosses, device_of
from txl_lightning.model.inference.cached import CachedTransformerXL, can_cache
from txl_lightning.model.language_model import LanguageModel, ScoringModel, SelectiveModel
from txl_lightning.model.transformer_xl import TransformerXL

BATCH_TOKENS = {"cpu": 2_048, "cuda": 16_384}
# A Transformer-XL's softmax reads the scored tokens only, so larger batches than those of other models need no more
# memory. They take a tenth less time, in bfloat16 a fifth.
CPU_TOKENS = 4_096
LONG_WINDOW = 1_024  # tokens; a longer one is read in chunks where the model allows it
CHUNK = 256
SHORTEST_TRIED = 64
UNLIMITED = 2**31
FEWEST_BLOCKS = 30  # for intervals from resampled blocks
POSITIONS_VERSION = 2  # increase it when other positions are chosen; 1 were single positions
WIDTH = 4  # of a block, in grids of contexts: the windows that only its ends need are then about an eighth more

Array = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class WindowReader:
    """Reader of windows of c tokens, each from a fresh state, for the losses of their last tokens.

    Args:
        model: model with its lengths set for reading windows.
        segment_len: longer windows are read in segments, the last of which is complete; None for one segment.
        limit: only the last `limit` tokens of a longer window are read; None for no limit.
        one_pass: whether the loss of a window's c-th target is that of a window of c tokens: `losses_at` is exact.
        batch_tokens: context tokens in a batch; None for the default of the model's device.
        carrier: reads long windows of a model from elsewhere in chunks, its state carried; None to read them at once.
    """

    model: LanguageModel
    segment_len: int | None = None
    limit: int | None = None
    one_pass: bool = False
    batch_tokens: int | None = None
    carrier: LanguageModel | None = None

    def visible(self, context: int) -> int:
        """Return how many of c tokens the model can see."""
        return context if self.limit is None else min(context, self.limit)

    def visible_begins(self, begins: Integers, firsts: Integers, stops: Integers) -> Integers:
        """Return the first token that the model reads of windows [begin, stop) whose targets are [first, stop)."""
        return begins if self.limit is None else np.minimum(np.maximum(begins, stops - 1 - self.limit), firsts - 1)

    def windows_at_once(self, context: int) -> int:
        """Return the windows of c tokens in a batch of about `batch_tokens`: fewer than that beyond 1,024 tokens."""
        tokens = self.batch_tokens or BATCH_TOKENS.get(device_of(self.model).type, BATCH_TOKENS["cuda"])
        return max(1, tokens // context * LONG_WINDOW // max(context, LONG_WINDOW))

    def last_losses(self, windows_BT: Tensor, n: int) -> Tensor:
        """Return the losses, [B, n], in nats, of each window's last n tokens, 1 <= n < T, given those before."""
        context = windows_BT.shape[1] - 1
        if self._in_chunks(context):
            return self.losses_at(windows_BT, range(context - n + 1, context + 1))
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

    def all_losses(self, windows_BT: Tensor) -> Tensor:
        """Return the losses, [B, T], in nats, of all targets of windows with T tokens of context."""
        length = windows_BT.shape[1] - 1
        if self.one_pass:
            return self.losses_at(windows_BT, range(1, length + 1))
        return self.last_losses(windows_BT, length)

    def losses_at(self, windows_BT: Tensor, contexts: Sequence[int]) -> Tensor:
        """Return the losses, [B, C], in nats, of each window's c-th target, 1 <= c < T, for every c of `contexts`.

        A long window is read in chunks with the state carried: keys and values, a recurrent state or memory tokens. The
        memory needed then grows with T, not with T².
        """
        if carrying := self._in_chunks(windows_BT.shape[1] - 1):
            return _losses_in_chunks(carrying, windows_BT, np.asarray(contexts))
        places = torch.as_tensor(contexts, device=windows_BT.device) - 1
        tokens_BT, targets_BT = windows_BT[:, :-1], windows_BT[:, 1:]
        if isinstance(self.model, SelectiveModel):
            return self.model.losses_at(tokens_BT, targets_BT[:, places], places)
        if not isinstance(self.model, TransformerXL):
            return self.model.score(tokens_BT, targets_BT, None)[0][:, places]
        # A large vocabulary makes the softmax expensive: it gets no other targets.
        return self.model.losses(self.model(tokens_BT, places_Q=places)[0], targets_BT[:, places])

    def _in_chunks(self, context: int) -> LanguageModel | None:
        """Return the model that reads a window of c tokens in chunks; None for a window that is read at once."""
        if context <= LONG_WINDOW or not self.one_pass:
            return None
        if can_cache(self.model):
            return CachedTransformerXL(self.model, mem_len=context)
        return self.model if isinstance(self.model, ScoringModel) else self.carrier


def _losses_in_chunks(model: LanguageModel, windows_BT: Tensor, contexts: Integers) -> Tensor:
    """Return the losses, [B, C], of `WindowReader.losses_at`, of windows read in chunks; `contexts` ascend."""
    state: Any = None
    losses, last = [], int(contexts[-1])
    for start in range(0, last, CHUNK):
        stop = min(start + CHUNK, last)
        here = contexts[(start < contexts) & (contexts <= stop)]
        first = int(here[0]) if len(here) else stop  # a chunk without a wanted target has one all the same
        nll_BT, state = model.score(windows_BT[:, start:stop], windows_BT[:, first : stop + 1], state)
        losses.append(nll_BT[:, (here - first).tolist()])
    return torch.cat(losses, dim=1)


def window_reader(model: LanguageModel, trained_len: int | None = None, clamp_len: int | None = None) -> WindowReader:
    """Return a reader that gives a model exactly c tokens of context.

    Attention reads the window as one segment in which every token attends to all tokens before it: equal to
    shorter segments with an unlimited memory. The memory before the window is empty, even for
    `memory_start="zeros"`: attended zeros would be context that is no token.

    Absolute positions mean nothing beyond the length they were trained with. Without recurrence such a model
    sees at most that length; with recurrence it reads segments of that length, with the memory of its training
    between them. Encodings of distances have no limit: sinusoids exist for any distance, and a trained table
    repeats its farthest row (Table 8 has both beyond their trained lengths).

    One pass is exact for encodings of distances, recurrent models and every other causal language model, but not for
    absolute positions, which are counted from the end of a window, and for variants of the model that say so
    (`cannot`): these read segments of the training's length as well, with their own lengths. Each context then needs
    windows of its own.

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
    segments = "one-pass windows" in model.cannot
    if not model.config.kind.absolute and not segments:
        return WindowReader(model.with_lengths(mem_len=0, **plain), one_pass=True)
    if trained_len is None:
        raise OptionError(
            "trained_len", None, f"must be given for encoding={model.config.encoding} or {type(model).__name__}"
        )
    if segments:
        return WindowReader(model.with_lengths(clamp_len=clamp_len), segment_len=trained_len)
    if model.config.mem_len:
        return WindowReader(model.with_lengths(**plain), segment_len=trained_len)
    return WindowReader(model.with_lengths(**plain), limit=trained_len)


def window_losses(
    reader: WindowReader,
    tokens: np.ndarray,
    starts: Integers,
    lengths: Integers,
    read: Callable[[Tensor], Tensor],
    width: int,
) -> Array:
    """Return what `read` gives for each of W windows, [W, width], nan beyond what it gives for shorter windows.

    Windows are read longest first, each from a fresh state, in batches of about `batch_tokens` tokens (fewer for
    windows beyond 1,024 tokens, whose attention grows with c²). In one pass a batch may have windows of several
    lengths: a shorter one is read farther than needed, if need be beyond the split, which its own targets ignore.
    Otherwise segments and positions count from the end of a window, and a batch has windows of one length. Under
    `torch.distributed` the windows are divided over the ranks: all ranks must call this function, and all get the
    whole result.

    Args:
        reader: reader from `window_reader`; its model is in evaluation mode during the call.
        tokens: the split, one-dimensional.
        starts: first token of each window.
        lengths: tokens of context of each window; the target after the last one is read too.
        read: returns losses, [B, n], in nats, of windows with T tokens, [B, T + 1]; n <= width.
        width: largest n.
    """
    longest_first = np.argsort(-lengths, kind="stable")
    rank, world_size = rank_and_world_size()
    own, device = longest_first[rank::world_size], device_of(reader.model)
    part, done = np.full((len(own), width), np.nan), 0
    with torch.no_grad(), evaluating(reader.model):
        while done < len(own):
            length = int(lengths[own[done]])
            batch = own[done : done + reader.windows_at_once(length)]
            if not reader.one_pass:
                batch = batch[lengths[batch] == length]
            places = np.minimum(starts[batch, None] + np.arange(length + 1), len(tokens) - 1)
            windows_BT = torch.from_numpy(tokens[places].astype(np.int64)).to(device)
            losses = read(windows_BT).cpu().double().numpy()
            part[done : done + len(batch), : losses.shape[1]] = losses
            done += len(batch)
    losses_W = np.empty((len(starts), width))
    for other, of_rank in enumerate(all_gather(part)):
        losses_W[longest_first[other::world_size]] = of_rank
    return losses_W


def context_losses(reader: WindowReader, tokens: np.ndarray, positions: Integers, context: int) -> Array:
    """Return l(c, t), [P], in nats, with exactly c tokens of context, or as many as the reader's limit.

    Args:
        reader: reader from `window_reader`.
        tokens: the split, one-dimensional.
        positions: t of the targets x_t.
        context: c.

    Raises:
        ValueError: a position has fewer than c tokens before it.
    """
    context = reader.visible(context)
    check_positions(positions, context, len(tokens))
    lengths = np.full(len(positions), context)
    last_loss = partial(reader.last_losses, n=1)
    return window_losses(reader, tokens, positions - context, lengths, last_loss, 1)[:, 0]


def loss_grid(
    reader: WindowReader, tokens: np.ndarray, positions: Integers, contexts: Sequence[int], begins: Integers | int = 0
) -> Array:
    """Return l(c, t), [C, P], in nats, with exactly c tokens of context, or as many as the reader's limit.

    If `reader.one_pass`, a window from t - c gives l(c, t) at its c-th target, for every c: the windows of all pairs
    (c, t) with the same t - c are one, read as far as the longest context. Otherwise every pair has a window of its
    own (`context_losses`). Both ways give the same losses.

    Where t - c is before `begins`, the context is shorter: it begins there.

    Args:
        reader: reader from `window_reader`.
        tokens: the split, one-dimensional.
        positions: t of the targets x_t, from `position_blocks` for few windows.
        contexts: c.
        begins: first token that a window of each position may have, [P], below t.

    Raises:
        ValueError: a position has too few tokens before it.
    """
    visible = [reader.visible(context) for context in contexts]
    distinct = np.unique(visible)
    check_positions(positions, int(distinct[-1]), len(tokens))
    whole_CP = distinct[:, None] <= positions - begins
    losses_CP = np.empty(whole_CP.shape)
    if reader.one_pass:
        row_N, place_N = np.nonzero(whole_CP)
        starts_W, lengths_W, window_N = shared_windows(positions[place_N] - distinct[row_N], positions[place_N])
        if isinstance(reader.model, TransformerXL) and device_of(reader.model).type == "cpu":
            reader = replace(reader, batch_tokens=reader.batch_tokens or CPU_TOKENS)

        def read(windows_BT: Tensor) -> Tensor:
            return reader.losses_at(windows_BT, distinct[distinct < windows_BT.shape[1]].tolist())

        losses_WC = window_losses(reader, tokens, starts_W, lengths_W, read, len(distinct))
        losses_CP[whole_CP] = losses_WC[window_N, row_N]
    else:
        for c, whole_P, losses_P in zip(distinct, whole_CP, losses_CP, strict=True):
            losses_P[whole_P] = context_losses(reader, tokens, positions[whole_P], int(c))
    if not whole_CP.all():
        cut_begins, ends = (np.broadcast_to(of_P, whole_CP.shape)[~whole_CP] for of_P in (begins, positions))
        losses_CP[~whole_CP] = span_losses(reader, tokens, cut_begins, ends, ends + 1)
    return losses_CP[np.searchsorted(distinct, visible)]


def shared_windows(begins: Integers, ends: Integers) -> tuple[Integers, Integers, Integers]:
    """Return the first token and the tokens of context of W windows, one for all targets with the same begin, [W].

    Args:
        begins: first token of the context of each of N targets.
        ends: the targets.

    Returns:
        First tokens and lengths, and the window of each target, [N].
    """
    starts_W, window_N = np.unique(begins, return_inverse=True)
    lengths_W = np.zeros(len(starts_W), dtype=np.int64)
    np.maximum.at(lengths_W, window_N, ends - begins)
    return starts_W, lengths_W, window_N


def span_losses(reader: WindowReader, tokens: np.ndarray, begins: Integers, firsts: Integers, stops: Integers) -> Array:
    """Return the loss of each of N spans of tokens, [N], in nats.

        loss = Σ_{first <= k < stop} -log P(x_k | x_{k-1}, …, x_begin)

    A model with a limit begins later: it reads at most `limit` tokens before the last one of the span. If
    `reader.one_pass`, all spans with one `begin` share a window; otherwise each distinct span has one of its own.

    Args:
        reader: reader from `window_reader`.
        tokens: the split, one-dimensional.
        begins: first token of the context.
        firsts: first token of the span, after `begins`.
        stops: token after the span.
    """
    begins = reader.visible_begins(begins, firsts, stops)
    spans_N3 = np.stack([begins, firsts, stops], axis=1)
    keys, window_N = np.unique(spans_N3[:, :1] if reader.one_pass else spans_N3, axis=0, return_inverse=True)
    window_N = window_N.reshape(-1)
    lengths_W = np.zeros(len(keys), dtype=np.int64)
    np.maximum.at(lengths_W, window_N, stops - 1 - begins)
    longest = int(lengths_W.max())
    losses_WT = window_losses(reader, tokens, keys[:, 0], lengths_W, reader.all_losses, longest)
    sums_WT = np.pad(losses_WT.cumsum(axis=1), ((0, 0), (1, 0)))
    losses: Array = sums_WT[window_N, stops - begins - 1] - sums_WT[window_N, firsts - begins - 1]
    return losses


def expected_seconds(reader: WindowReader, tokens: np.ndarray, lengths: Integers) -> float:
    """Return about how long windows of these lengths take, after a trial with windows of 64, 128, … tokens.

    The trial takes about a second, but reads only a fiftieth of the tokens if no window is long. Beyond the lengths
    that were tried the time per token grows linearly with the length.

    Args:
        reader: reader from `window_reader`.
        tokens: the split, one-dimensional.
        lengths: tokens of context of each window.
    """
    size, sizes, rates = 0, [], []
    started, left = time.perf_counter(), int(lengths.sum()) // 50 if lengths.max() <= LONG_WINDOW else UNLIMITED
    with torch.no_grad(), evaluating(reader.model):
        while size < lengths.max() and left > 0 and time.perf_counter() - started < 1:
            size = min(2 * size or SHORTEST_TRIED, int(lengths.max()))
            window_T = torch.from_numpy(tokens[: size + 1].astype(np.int64)).to(device_of(reader.model))
            windows_BT = window_T.expand(reader.windows_at_once(size), -1)
            begun = time.perf_counter()
            reader.last_losses(windows_BT, 1).cpu()
            sizes.append(size)
            rates.append((time.perf_counter() - begun) / (size * len(windows_BT)))
            left -= size * len(windows_BT)
    growth = max(0.0, (rates[-1] - rates[-2]) / (sizes[-1] - sizes[-2])) if len(sizes) > 1 else 0.0
    return float((lengths * (np.interp(lengths, sizes, rates) + growth * np.maximum(0, lengths - size))).sum())


def check_positions(positions: Integers, context: int, n_tokens: int) -> None:
    """Raise ValueError unless every position is in the split and has `context` tokens before it."""
    if len(positions) and not context <= positions.min() <= positions.max() < n_tokens:
        raise ValueError(f"positions must be in {context} … {n_tokens - 1} for a context of {context} tokens")


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


def sliding_losses(
    reader: WindowReader, tokens: np.ndarray, window: int, stride: int = 1, max_windows: int | None = None
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

    Raises:
        OptionError: a length is below 1, S is above L (or above the tokens of L that the model sees), or n is below 2.
    """
    started = time.perf_counter()
    longest = visible_window(reader, window, stride)
    require(len(tokens) >= 2, "splits", f"{len(tokens)} tokens", "needs at least 2")
    firsts = np.arange(0, len(tokens) - 1, stride, dtype=np.int64)[:max_windows]
    ends = np.minimum(firsts + stride, len(tokens) - 1)
    device = device_of(reader.model)
    parts = []
    with (
        torch.no_grad(),
        evaluating(reader.model),
        tqdm(total=len(ends), unit="window", leave=False, disable=None) as bar,
    ):
        for batch in _batches(ends - firsts, np.minimum(ends, longest), reader.windows_at_once(longest)):
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


def position_blocks(
    n_tokens: int, n_positions: int, contexts: Sequence[int], seed: int | None = None
) -> tuple[Integers, Integers]:
    """Return P positions t, ascending, each with the longest context before it, and the block of each position.

    The split is divided into equal stretches. The block of a stretch ends at its last token, or with a seed at one
    drawn from those at which the block fits into the stretch. Positions within a block are Δ apart, the step of the
    grid of C contexts. One window of tokens then serves up to C positions of a block, and P_b positions need
    P_b + C - 1 windows, the last C - 1 of them shorter.

        blocks = max(30, P / 4C), at most P

    On an uneven grid, contexts c < c' share a window if t and t + c' - c are both in a block. Δ is the one of its steps
    with which the windows of a block have the fewest tokens, of those at which all blocks fit into the split.

    Larger blocks would save at most an eighth of the tokens, but fewer blocks make wider intervals. Where the split
    is too short for P positions that are Δ apart, blocks have several positions in each step.

    Args:
        n_tokens: tokens of the split.
        n_positions: P.
        contexts: the grid, ascending.
        seed: of the places of the blocks in their stretches; None for the ends.

    Raises:
        OptionError: the split has fewer such positions.
    """
    max_context = contexts[-1]
    allowed = f"must be below the {n_tokens} tokens of the split"
    require(max_context < n_tokens, "max_context", max_context, allowed)
    available = n_tokens - max_context
    allowed = f"must be in 1 … {available}, the positions of the split with {max_context} tokens before them"
    require(1 <= n_positions <= available, "n_positions", n_positions, allowed)

    size = n_positions // max(FEWEST_BLOCKS, n_positions // (WIDTH * len(contexts)))

    def tokens_read(step: int) -> int:
        ends = np.repeat(step * np.arange(max(1, size)), len(contexts))
        return int(shared_windows(ends - np.resize(contexts, len(ends)), ends)[1].sum())

    steps = np.unique(np.diff(contexts)).tolist()
    step = min([step for step in steps if n_positions * step <= available] or steps[:1], key=tokens_read)
    rasters = -(-n_positions * step // available)
    n_blocks = min(n_positions, max(FEWEST_BLOCKS, n_positions // (WIDTH * len(contexts) * rasters)))
    longest = -(-n_positions // n_blocks) * step
    before_first = 0 if (n_tokens - 1) // n_blocks >= max_context + longest else max_context - 1
    room = n_tokens - 1 - before_first
    ends = np.arange(n_blocks + 1, dtype=np.int64) * room // n_blocks
    sizes = np.diff(-(-ends * n_positions // room))  # in proportion to the stretches, so that each has room
    generator, positions = np.random.default_rng(seed), []
    for size, length, end in zip(sizes.tolist(), np.diff(ends).tolist(), ends[1:].tolist(), strict=True):
        block = before_first + end - _offsets(size, length, step)[::-1]
        if seed is not None and size:
            first = max(max_context, before_first + end - length + 1)
            block -= generator.integers(block[0] - first + 1)
        positions.append(block)
    return np.concatenate(positions), np.repeat(np.cumsum(sizes > 0) - 1, sizes)


def _offsets(size: int, length: int, step: int) -> Integers:
    """Return `size` different offsets in 0 … length - 1, ascending: multiples of `step`, then rasters between them."""
    step = min(step, length)
    rasters = min(step, -(-size // (length // step)))
    firsts = np.arange(rasters, dtype=np.int64) * step // rasters
    offsets = (firsts[:, None] + np.arange(0, length, step)).ravel()
    return np.sort(offsets[offsets < length][:size])
