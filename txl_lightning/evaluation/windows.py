"""Losses with exactly c tokens of context (appendix C): windows, each read from a fresh state.

Shape letters: B windows, T tokens, C contexts, P positions, N targets, W windows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from txl_lightning.distributed.ranks import all_gather, rank_and_world_size
from txl_lightning.errors import OptionError
from txl_lightning.evaluation.losses import Array, Integers, device_of, evaluating
from txl_lightning.model.inference.cached import CachedTransformerXL, can_cache
from txl_lightning.model.language_model import LanguageModel, ScoringModel, SelectiveModel
from txl_lightning.model.positions import without_marks
from txl_lightning.model.transformer_xl import TransformerXL

# A Transformer-XL's softmax reads the scored tokens only: larger batches need no more memory and take less time.
WINDOW_TOKENS = {"cpu": 2_048, "cpu, TransformerXL": 4_096, "cuda": 16_384}
LONG_WINDOW = 1_024  # tokens; a longer one is read in chunks where the model allows it
FEW_TARGETS_LONG_WINDOW = 2_048  # as the last layer attends from the targets alone
CHUNK = 256


@dataclass(frozen=True)
class WindowReader:
    """Reader of windows of c tokens, each from a fresh state.

    Args:
        model: model with its lengths set for reading windows.
        segment_len: windows are read in segments of this length, the last one complete; None to read them whole.
        limit: only the last `limit` tokens of a longer window are read; None for no limit.
        one_pass: whether the loss of a window's c-th target is the loss of a window of c tokens.
        batch_tokens: context tokens in a batch; None for the default of the model's device.
    """

    model: LanguageModel
    segment_len: int | None = None
    limit: int | None = None
    one_pass: bool = False
    batch_tokens: int | None = None

    def visible(self, context: int) -> int:
        """Return how many of c tokens the model can see."""
        if self.limit is None:
            return context
        return min(context, self.limit)

    def windows_at_once(self, context: int) -> int:
        """Return the windows of c tokens in a batch of about `batch_tokens`: fewer than that beyond long windows."""
        is_transformer = isinstance(self.model, TransformerXL)
        device = device_of(self.model).type
        if device == "cpu" and is_transformer:
            device = "cpu, TransformerXL"
        tokens = self.batch_tokens or WINDOW_TOKENS.get(device, WINDOW_TOKENS["cuda"])
        longest = FEW_TARGETS_LONG_WINDOW if is_transformer else LONG_WINDOW
        return max(1, tokens // context * longest // max(context, longest))

    def losses(self, windows_BT: Tensor, contexts: Integers) -> Tensor:
        """Return the losses, [B, C], in nats, of each window's c-th target for every c, ascending.

        Windows have T + 1 tokens, 1 <= c <= T.

        A long window is read in chunks, with keys and values or a recurrent state carried: the memory needed then grows
        with T, not with T².
        """
        T = windows_BT.shape[1] - 1
        is_dense = len(contexts) == T + 1 - contexts[0]
        if self._is_long(T, is_dense):
            return self._losses_of_segments(
                self._model_for_chunks(T), windows_BT, contexts, [*range(0, T, CHUNK), T]
            )
        size = self.segment_len or T
        edges = [0, *range((T - 1) % size + 1, T + 1, size)]
        if (
            len(edges) == 2
            and not is_dense
            and isinstance(self.model, SelectiveModel | TransformerXL)
        ):
            return self._losses_at(windows_BT, contexts)
        return self._losses_of_segments(self.model, windows_BT, contexts, edges)

    def _is_long(self, T: int, is_dense: bool) -> bool:
        """Return whether a window is read in chunks."""
        longest = LONG_WINDOW
        if isinstance(self.model, TransformerXL) and not is_dense:
            longest = FEW_TARGETS_LONG_WINDOW
        carries_state = can_cache(self.model) or isinstance(self.model, ScoringModel)
        return self.one_pass and longest < T and carries_state

    def _model_for_chunks(self, T: int) -> LanguageModel:
        if can_cache(self.model):
            return CachedTransformerXL(self.model, mem_len=T)
        return self.model

    def _losses_at(self, windows_BT: Tensor, contexts: Integers) -> Tensor:
        """Score the wanted targets of whole windows, without the others."""
        model = self.model
        places_C = torch.as_tensor(contexts - 1, device=windows_BT.device)
        tokens_BT = windows_BT[:, :-1]
        targets_BC = without_marks(windows_BT[:, 1:][:, places_C])
        if isinstance(model, SelectiveModel):
            return model.losses_at(tokens_BT, targets_BC, places_C)
        assert isinstance(model, TransformerXL)
        hidden_BCD, _ = model(tokens_BT, places_Q=places_C)
        return model.losses(hidden_BCD, targets_BC)

    def _losses_of_segments(
        self, model: LanguageModel, windows_BT: Tensor, contexts: Integers, edges: list[int]
    ) -> Tensor:
        """Read windows from edge to edge, the state carried."""
        targets_BT = without_marks(windows_BT)
        state = None
        parts = []
        for start, stop in pairwise(edges):
            wanted = contexts[(start < contexts) & (contexts <= stop)]
            first = (
                int(wanted[0]) if len(wanted) else stop
            )  # a segment without a wanted target has one all the same
            nll_BT, state = model.score(
                windows_BT[:, start:stop], targets_BT[:, first : stop + 1], state
            )
            parts.append(nll_BT[:, (wanted - first).tolist()])
        return torch.cat(parts, dim=1)


def window_reader(
    model: LanguageModel, trained_len: int | None = None, clamp_len: int | None = None
) -> WindowReader:
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
    if clamp_len is None:
        clamp_len = model.config.clamp_len
    window_lengths = {
        "same_length": False,
        "ext_len": 0,
        "memory_start": "empty",
        "clamp_len": clamp_len,
    }
    reads_segments = "one-pass windows" in model.cannot
    if not reads_segments and not model.config.kind.absolute:
        return WindowReader(model.with_lengths(mem_len=0, **window_lengths), one_pass=True)
    if trained_len is None:
        allowed = f"must be given for encoding={model.config.encoding} or {type(model).__name__}"
        raise OptionError("trained_len", None, allowed)
    if reads_segments:
        return WindowReader(model.with_lengths(clamp_len=clamp_len), segment_len=trained_len)
    if model.config.mem_len:
        return WindowReader(model.with_lengths(**window_lengths), segment_len=trained_len)
    return WindowReader(model.with_lengths(**window_lengths), limit=trained_len)


@dataclass(frozen=True)
class _Windows:
    """Windows that serve N targets.

    Args:
        begins_W: first token of each window.
        lengths_W: tokens before the last target of each window.
        targets_of: the targets of each window, as places among the N.
    """

    begins_W: Integers
    lengths_W: Integers
    targets_of: list[Integers]

    @classmethod
    def for_targets(
        cls, begins_N: Integers, contexts_N: Integers, ends_N: Integers, one_pass: bool
    ) -> _Windows:
        """Join targets with the same begin, and with the same end unless one pass serves all ends."""
        keys_N = np.stack([begins_N, np.zeros_like(ends_N) if one_pass else ends_N])
        order_N = np.lexsort(keys_N[::-1])
        sorted_keys = keys_N[:, order_N]
        is_first = np.any(np.diff(sorted_keys, prepend=-1) != 0, axis=0)
        targets_of = np.split(order_N, np.flatnonzero(is_first)[1:])
        firsts = np.array([targets[0] for targets in targets_of])
        reached_N = contexts_N if one_pass else ends_N - begins_N
        lengths_W = np.array([reached_N[targets].max() for targets in targets_of])
        return cls(begins_N[firsts], lengths_W, targets_of)

    def batches(self, reader: WindowReader) -> Iterator[Integers]:
        """Yield this rank's windows in batches, the longest first."""
        rank, world_size = rank_and_world_size()
        own = np.argsort(-self.lengths_W, kind="stable")[rank::world_size]
        n_done = 0
        while n_done < len(own):
            length = int(self.lengths_W[own[n_done]])
            batch = own[n_done : n_done + reader.windows_at_once(length)]
            if not reader.one_pass:
                batch = batch[self.lengths_W[batch] == length]
            yield batch
            n_done += len(batch)


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
    needed, if need be beyond the split, which its own targets ignore. Otherwise targets with the same begin and end
    share one, and all windows of a batch have one length. The windows are divided among the ranks.

    Args:
        reader: reader from `window_reader`.
        tokens: the split, one-dimensional.
        begins_N: first token of each target's context.
        targets_N: t.
        ends_N: last target of each target's window.
        progress: show a progress bar on a terminal.
    """
    losses_N = np.zeros(len(targets_N))
    if not len(targets_N):
        return losses_N
    if reader.limit is not None:
        begins_N = np.maximum(begins_N, ends_N - reader.limit)
    contexts_N = targets_N - begins_N
    windows = _Windows.for_targets(begins_N, contexts_N, ends_N, reader.one_pass)
    device = device_of(reader.model)
    rank, world_size = rank_and_world_size()
    silent = None if progress and rank == 0 else True
    n_windows = len(range(rank, len(windows.begins_W), world_size))
    bar = tqdm(total=n_windows, unit="window", leave=False, disable=silent)
    with torch.no_grad(), evaluating(reader.model), bar:
        for batch in windows.batches(reader):
            length = int(windows.lengths_W[batch].max())
            places = windows.begins_W[batch, None] + np.arange(length + 1)
            places = np.minimum(places, len(tokens) - 1)
            windows_BT = torch.from_numpy(tokens[places].astype(np.int64)).to(device)
            targets_of = [windows.targets_of[window] for window in batch]
            targets = np.concatenate(targets_of)
            rows = np.repeat(np.arange(len(batch)), [len(of_window) for of_window in targets_of])
            contexts = np.unique(contexts_N[targets])
            nll_BC = reader.losses(windows_BT, contexts).cpu().double().numpy()
            losses_N[targets] = nll_BC[rows, np.searchsorted(contexts, contexts_N[targets])]
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
    longest = int(visible_C.max())
    last = len(tokens) - 1
    if len(positions) and not longest <= positions.min() <= positions.max() <= last:
        raise ValueError(
            f"positions must be in {longest} … {last} for a context of {longest} tokens"
        )
    begins_CP = np.maximum(positions - visible_C[:, None], begins)
    targets = np.broadcast_to(positions, begins_CP.shape).ravel()
    losses = read_windows(reader, tokens, begins_CP.ravel(), targets, targets, progress)
    return losses.reshape(begins_CP.shape)
