"""Attention by relative position, averaged over a split (Figures 5 and 7).

The model runs as in any evaluation. Hooks record the inputs of its attention modules, from which the scores of all
terms and of single terms are computed again. Only sums over queries are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from tqdm import tqdm

from txl_lightning.config.architecture import TransformerXLConfig
from txl_lightning.data.documents import without_marks
from txl_lightning.data.streams import Streams
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.errors import require
from txl_lightning.model.attention import Attention
from txl_lightning.model.encodings import LayerPositions
from txl_lightning.model.memory import Memory
from txl_lightning.model.positions import VisibleKeys
from txl_lightning.model.transformer_xl import TransformerXL

ALL_TERMS = "all"
SINGLE_TERMS = "abd"  # (c) does not depend on the query: the paper shows no softmax of (c) alone

Array = NDArray[np.float64]
MARKED_SHARE = 0.2  # of the context, for each target
DEFAULT_TARGETS = 24


@dataclass(frozen=True)
class AttentionMaps:
    """Averages over queries, one row per head, layer by layer (R = N·H rows).

    Args:
        by_distance: for `all` terms and each single term, [R, L]: share of attention at the distances
            0, …, L - 1; every row sums to 1.
        beyond: for `all` terms and each single term, [R]: share of attention at distances >= L, not in the rows.
        entropy: [R], mean of -Σ_j P_ij log2 P_ij, in bits.
        mean_distance: [R], mean of Σ_j P_ij (i - j), in tokens, over all distances.
        in_memory: [R], share of attention on the memory; the rest is on the query's own segment.
        queries: number of queries averaged.
    """

    by_distance: dict[str, Array]
    beyond: dict[str, Array]
    entropy: Array
    mean_distance: Array
    in_memory: Array
    queries: int

    @property
    def reach(self) -> int:
        """L, the number of distances."""
        return self.by_distance[ALL_TERMS].shape[1]


def attention_reach(config: TransformerXLConfig, segment_len: int) -> int:
    """Return L: attention is averaged over the queries that see all distances 0, …, L - 1.

    With `same_length` every query after the first tokens sees M keys, its own included: L = M (with `extra_key`
    M + 1). Otherwise a query sees M keys and those of its segment: L = M + 1. Without memory a query sees only its
    segment, and L is half a segment: the queries of the second half are averaged.
    """
    if config.mem_len == 0:
        return (segment_len + 1) // 2
    return config.attention_len or config.mem_len + 1


@torch.no_grad()
def attention_maps(model: TransformerXL, streams: Streams, max_segments: int | None = None) -> AttentionMaps:
    """Average attention over the streams of a split, the memory carried from segment to segment.

    Queries that do not yet see L keys (`attention_reach`), at the start of a stream, of a document after which the
    memory is reset, or of a segment without memory, are left out. Takes O(N·H·(M + T)) float64 numbers besides one
    batch.

    Args:
        model: model in evaluation mode, its lengths set.
        streams: streams of one split.
        max_segments: stop after this many segments.

    Raises:
        OptionError: the streams are too short: no query sees L keys.
    """
    config, device = model.config, next(model.parameters()).device
    reach = attention_reach(config, streams.segment_len)
    n_segments = min(len(streams), max_segments or len(streams))
    n_streams = len(streams[0].targets)
    longest = min(streams.n_targets // n_streams, n_segments * streams.segment_len)
    most = longest - (reach - config.mem_len)
    allowed = f"must be at most {most}: each stream has {longest} tokens to read (set by batch_size and max_segments)"
    require(config.mem_len == 0 or reach <= longest, "mem_len", config.mem_len, allowed)
    sums = _AttentionSums(config, config.mem_len + streams.segment_len + config.ext_len, device)
    memory, read = None, 0
    for index in tqdm(range(n_segments), desc="attention", unit="segment", disable=None, leave=False):
        segment = streams[index]
        tokens_BT = segment.tokens.to(device)
        T = tokens_BT.shape[1]
        # Query i sees the filled memory and i + 1 tokens of its segment; extended context has no targets.
        extended = T - segment.targets.shape[1]
        first = min(T, max(extended, reach - 1 - min(read, config.mem_len)))
        with watched(model, partial(sums.add, first, reach)):
            _, memory = model(tokens_BT, memory)
        read += max(0, T - config.ext_len)
    allowed = f"must be shorter: no document lets a query see {reach} keys"
    require(sums.queries > 0, "mem_len" if config.mem_len else "segment_len", config.mem_len or reach, allowed)
    return sums.averages(reach)


class AttentionInputs(NamedTuple):
    """Inputs of `Attention.forward` and `Attention.logits`."""

    hidden_BTD: Tensor
    memory_BMD: Tensor
    positions: LayerPositions
    visible: VisibleKeys


@contextmanager
def watched(model: TransformerXL, see: Callable[[int, Attention, AttentionInputs], None]) -> Iterator[None]:
    """Call `see` with layer n, its attention module and the module's inputs, whenever the model runs in the block."""

    def hook(n: int, attention: nn.Module, inputs: tuple[Any, ...]) -> None:
        assert isinstance(attention, Attention)
        see(n, attention, AttentionInputs(*inputs))

    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    with ExitStack() as hooks:
        for n, attention in enumerate(attentions):
            hooks.enter_context(attention.register_forward_pre_hook(partial(hook, n)))
        yield


class _AttentionSums:
    """Sums over queries, in float64.

    Args:
        config: layers, heads and terms.
        n_distances: S, the largest possible number of distances.
        device: device of the model.
    """

    def __init__(self, config: TransformerXLConfig, n_distances: int, device: torch.device) -> None:
        shape = (config.n_layer, config.n_head)
        zeros = partial(torch.zeros, dtype=torch.float64, device=device)
        self.terms: dict[str, str | None] = {ALL_TERMS: None}
        self.terms |= {term: term for term in SINGLE_TERMS if term in config.active_terms}
        self.by_distance_NHS = {name: zeros(*shape, n_distances) for name in self.terms}
        self.entropy_NH, self.in_memory_NH = zeros(shape), zeros(shape)
        self.queries = 0

    def add(self, first: int, reach: int, n: int, attention: Attention, inputs: AttentionInputs) -> None:
        """Add the queries from `first` on that see `reach` keys, of one layer and segment."""
        n_memory, B = inputs.memory_BMD.shape[1], len(inputs.hidden_BTD)
        enough_BT = ((inputs.visible.mask_TK[..., first:, :] == 0).sum(dim=-1) >= reach).expand(B, -1)
        self.queries += int(enough_BT.sum()) if n == 0 else 0
        for name, terms in self.terms.items():
            weights_HBTK = attention.logits(*inputs, terms=terms).softmax(-1)[:, :, first:]
            weights_HBTK = weights_HBTK * enough_BT[:, :, None]
            weights_HTK = weights_HBTK.sum(dim=1, dtype=torch.float64)
            of_distance_HS = by_distance(weights_HTK, n_memory + first).sum(dim=1)
            self.by_distance_NHS[name][n, :, : of_distance_HS.shape[1]] += of_distance_HS
            if name == ALL_TERMS:
                self.entropy_NH[n] += torch.special.entr(weights_HBTK).sum(dim=(1, 2, 3), dtype=torch.float64)
                self.in_memory_NH[n] += weights_HTK[:, :, :n_memory].sum(dim=(1, 2))

    def averages(self, reach: int) -> AttentionMaps:
        """Return the averages, with rows for the distances below `reach`."""

        def rows(sums: Tensor) -> Array:
            return sums.flatten(0, 1).cpu().numpy() / self.queries

        means = {name: rows(sums) for name, sums in self.by_distance_NHS.items()}
        within = {name: mean[:, :reach] for name, mean in means.items()}
        return AttentionMaps(
            by_distance={name: mean / mean.sum(axis=1, keepdims=True) for name, mean in within.items()},
            beyond={name: mean[:, reach:].sum(axis=1) for name, mean in means.items()},
            entropy=rows(self.entropy_NH) / np.log(2),
            mean_distance=means[ALL_TERMS] @ np.arange(means[ALL_TERMS].shape[1]),
            in_memory=rows(self.in_memory_NH),
            queries=self.queries,
        )


def by_distance(weights_XTK: Tensor, n_before: int) -> Tensor:
    """Turn columns of keys into columns of distances 0, …, K - 1: the inverse of `relative_shift`.

    Args:
        weights_XTK: attention of T queries, zero on keys of the future.
        n_before: number of keys before the first query's own.
    """
    T, K = weights_XTK.shape[-2:]
    device = weights_XTK.device
    keys_TS = n_before + torch.arange(T, device=device)[:, None] - torch.arange(K, device=device)
    weights_XTS = weights_XTK.gather(-1, keys_TS.clamp(min=0).expand_as(weights_XTK))
    return weights_XTS.masked_fill(keys_TS < 0, 0)


@dataclass(frozen=True)
class TextAttention:
    """Attention of some heads from a piece of text to the tokens before it.

    Args:
        position: position of the first target in the split.
        weights: attention by head (layer, head; both from 0), [Q, C], of the query before each of the Q targets
            on the C tokens before the piece.
        marked: by head, [Q, C]: the fifth of the C tokens that each target attends to most.
        targets: Q symbols.
        context: C symbols, the oldest first.
    """

    position: int
    weights: dict[tuple[int, int], Array]
    marked: dict[tuple[int, int], NDArray[np.bool_]]
    targets: list[str]
    context: list[str]


@torch.no_grad()
def text_attention(
    model: TransformerXL,
    tokens: np.ndarray,
    vocabulary: Vocabulary,
    position: int | None,
    n_targets: int | None,
    heads: list[tuple[int, int]],
    segment_len: int,
) -> TextAttention:
    """Return the attention on the memory of the query before each target.

    The text before the piece is read in segments, as in evaluation, from so far back that every state of the
    memory equals that of a stream. The piece is one segment. Without memory, the context is the tokens before the
    piece in its segment.

    Args:
        model: model in evaluation mode, its lengths set.
        tokens: a split, one-dimensional.
        vocabulary: vocabulary of the symbols.
        position: position of the first target in the split; None for the middle, or the nearest that fits.
        n_targets: Q; None for 24, or fewer in short segments: a whole segment, or half of one without memory.
        heads: layer and head, from 0.
        segment_len: T.

    Raises:
        OptionError: the piece does not fit into a segment, or the split has too few tokens before or after it.
    """
    config, device = model.config, next(model.parameters()).device
    longest = segment_len if config.mem_len else segment_len - 1
    require(longest >= 1, "segment_len", segment_len, "must be >= 2 without memory: a target needs context")
    if n_targets is None:
        n_targets = min(DEFAULT_TARGETS, longest if config.mem_len else (segment_len + 1) // 2)
    require(
        1 <= n_targets <= longest, "text_tokens", n_targets, f"must be in 1 … {longest} (segment_len={segment_len})"
    )
    n_context = config.mem_len or segment_len - n_targets
    first, last = n_context + 1, len(tokens) - n_targets
    allowed = f"must leave room for memory and piece in the {len(tokens)} tokens of the split"
    require(first <= last, "mem_len" if config.mem_len else "segment_len", config.mem_len or segment_len, allowed)
    position = min(max(first, len(tokens) // 2), last) if position is None else position
    allowed = f"must be in {first} … {last}, the {len(tokens)} tokens of the split minus memory and piece"
    require(first <= position <= last, "text_position", position, allowed)

    start = position - 1  # the first query: the token before the first target
    view = model.with_lengths(ext_len=0)
    boundaries = [start - n_context, start + n_targets]
    if config.mem_len:
        farthest = max(0, start - (config.n_layer + 1) * config.mem_len)
        boundaries = [*sorted({farthest, *range(start, farthest, -segment_len)}), start + n_targets]
    segments = [torch.from_numpy(tokens[a:b].astype(np.int64))[None].to(device) for a, b in pairwise(boundaries)]
    memory: Memory | None = None
    for segment_BT in segments[:-1]:
        _, memory = view(segment_BT, memory)

    seen: dict[int, Tensor] = {}

    def see(n: int, attention: Attention, inputs: AttentionInputs) -> None:
        seen[n] = attention.logits(*inputs)[:, 0].softmax(-1)

    with watched(view, see):
        view(segments[-1], memory)
    weights = {(n, h): seen[n][h, -n_targets:, :n_context].double().cpu().numpy() for n, h in heads}
    return TextAttention(
        position=position,
        weights=weights,
        marked={head: most_attended(of_head) for head, of_head in weights.items()},
        targets=[_symbol(vocabulary, token) for token in without_marks(tokens[position : position + n_targets])],
        context=[_symbol(vocabulary, token) for token in without_marks(tokens[start - n_context : start])],
    )


def most_attended(weights_QC: Array) -> NDArray[np.bool_]:
    """Mark the fifth of the C tokens with the most attention in every row; of equal ones, the later."""
    n_marked = max(1, round(MARKED_SHARE * weights_QC.shape[1]))
    marked = np.zeros(weights_QC.shape, dtype=bool)
    np.put_along_axis(marked, np.argsort(weights_QC, axis=1, kind="stable")[:, -n_marked:], True, axis=1)
    return marked & (weights_QC > 0)


def _symbol(vocabulary: Vocabulary, token: int) -> str:
    """Return the symbol of a token; a byte becomes the character with its number, a token of BPE its text."""
    if vocabulary.level == "bpe":
        return vocabulary.decode([token])
    return vocabulary.symbols[token] if vocabulary.symbols else chr(token)
