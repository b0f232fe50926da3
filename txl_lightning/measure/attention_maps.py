"""Attention by relative position, averaged over a split (Figures 5 and 7), and on a piece of text (Figure 6).

The model runs as in any evaluation. The inputs of its attention modules are recorded, from which the scores of all
terms and of single terms are computed again. Only sums over queries are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from txl_lightning.config.architecture import TransformerXLConfig
from txl_lightning.data.streams import Streams
from txl_lightning.data.vocabulary import Vocabulary, without_marks
from txl_lightning.errors import require
from txl_lightning.model.attention import Attention
from txl_lightning.model.encodings import LayerPositions
from txl_lightning.model.memory import Memory
from txl_lightning.model.positions import VisibleKeys
from txl_lightning.model.transformer_xl import TransformerXL

ALL_TERMS = "all"
SINGLE_TERMS = "abd"  # u·k does not depend on the query: the paper shows no softmax of (c) alone

Array = NDArray[np.float64]
MARKED_SHARE = 0.2  # of the context, for each target
DEFAULT_TARGETS = 24


@dataclass(frozen=True)
class AttentionMaps:
    """Averages over queries, one row per head, layer by layer (R = N·H rows).

    Args:
        by_distance: for `all` terms and each single term, [R, L]: share of attention at the distances 0, …, L - 1;
            every row sums to 1.
        averages: by name, [R]. entropy_bits: mean of -Σ_j P_ij log2 P_ij. mean_distance: mean of Σ_j P_ij (i - j), in
            tokens. in_memory: share of attention on the memory. All distances count, also those beyond L.
        queries: number of queries averaged.
    """

    by_distance: dict[str, Array]
    averages: dict[str, Array]
    queries: int


class AttentionInputs(NamedTuple):
    """Inputs of `Attention.forward` and `Attention.logits`."""

    hidden_BTD: Tensor
    memory_BMD: Tensor
    positions: LayerPositions
    visible: VisibleKeys


@torch.no_grad()
def attention_inputs(
    model: TransformerXL, tokens_BT: Tensor, memory: Memory | None = None
) -> tuple[list[tuple[Attention, AttentionInputs]], Memory]:
    """Run the model; return the attention module of every layer with its inputs, and the next memory."""
    found: list[tuple[Attention, AttentionInputs]] = []

    def record(attention: Any, inputs: tuple[Any, ...]) -> None:
        found.append((attention, AttentionInputs(*inputs)))

    with ExitStack() as hooks:
        for module in model.modules():
            if isinstance(module, Attention):
                hooks.enter_context(module.register_forward_pre_hook(record))
        _, memory = model(tokens_BT, memory)
    return found, memory


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
    zeros = partial(torch.zeros, config.n_layer, config.n_head, dtype=torch.float64, device=device)
    names = [ALL_TERMS, *(term for term in SINGLE_TERMS if term in config.active_terms)]
    entropy_NH, in_memory_NH, queries = zeros(), zeros(), 0
    sums_NHS = {name: zeros(config.mem_len + streams.segment_len + config.ext_len) for name in names}
    for n, attention, inputs, counts_BT in _counted_queries(model, streams, max_segments, reach):
        queries += int(counts_BT.sum()) if n == 0 else 0
        n_memory = inputs.memory_BMD.shape[1]
        for name in names:
            logits_HBTK = attention.logits(*inputs, terms=None if name == ALL_TERMS else name)
            weights_HBTK = logits_HBTK.softmax(-1) * counts_BT[:, :, None]
            weights_HTK = weights_HBTK.sum(dim=1, dtype=torch.float64)
            of_distance_HS = with_distances(weights_HTK, n_memory).sum(dim=1)
            sums_NHS[name][n, :, : of_distance_HS.shape[1]] += of_distance_HS
            if name == ALL_TERMS:
                entropy_NH[n] += torch.special.entr(weights_HBTK).sum(dim=(1, 2, 3), dtype=torch.float64)
                in_memory_NH[n] += weights_HTK[:, :, :n_memory].sum(dim=(1, 2))
    length = config.mem_len or streams.segment_len
    allowed = f"must be shorter: no query sees {reach} keys in streams and documents of this length"
    require(queries > 0, "mem_len" if config.mem_len else "segment_len", length, allowed)

    def mean(sums_NH: Tensor) -> Array:
        return sums_NH.flatten(0, 1).cpu().numpy() / queries

    means = {name: mean(sums) for name, sums in sums_NHS.items()}
    averages = {
        "entropy_bits": mean(entropy_NH) / np.log(2),
        "mean_distance": means[ALL_TERMS] @ np.arange(means[ALL_TERMS].shape[1]),
        "in_memory": mean(in_memory_NH),
    }
    by_distance = {name: rows[:, :reach] / rows[:, :reach].sum(axis=1, keepdims=True) for name, rows in means.items()}
    return AttentionMaps(by_distance, averages, queries)


def _counted_queries(
    model: TransformerXL, streams: Streams, max_segments: int | None, reach: int
) -> Iterator[tuple[int, Attention, AttentionInputs, Tensor]]:
    """Yield layer, attention module, inputs and a mask [B, T] of the queries that see `reach` keys, by segment."""
    memory, n_read, config, device = None, 0, model.config, next(model.parameters()).device
    n_segments = min(len(streams), max_segments or len(streams))
    for index in tqdm(range(n_segments), desc="attention", unit="segment", disable=None, leave=False):
        tokens_BT, n_targets = streams[index].tokens.to(device), streams[index].targets.shape[1]
        B, T = tokens_BT.shape
        recorded, memory = attention_inputs(model, tokens_BT, memory)
        # Query i sees the filled memory and i + 1 tokens of its segment; extended context has no targets.
        first = max(T - n_targets, reach - 1 - min(n_read, config.mem_len))
        n_read += max(0, T - config.ext_len)
        for n, (attention, inputs) in enumerate(recorded):
            counts_BT = ((inputs.visible.mask_TK == 0).sum(dim=-1) >= reach).expand(B, -1).clone()
            counts_BT[:, :first] = False
            yield n, attention, inputs, counts_BT


def with_distances(weights_XTK: Tensor, n_before: int) -> Tensor:
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
    """Attention from a piece of text to the tokens before it.

    Args:
        position: position of the first target in the split.
        weights: by head as `LAYER:HEAD`, from 1: [Q, C], attention of the query before each of the Q targets on the
            C tokens before the piece.
        targets: Q symbols.
        context: C symbols, the oldest first.
    """

    position: int
    weights: dict[str, Array]
    targets: list[str]
    context: list[str]


def text_attention(
    model: TransformerXL,
    tokens: np.ndarray,
    vocabulary: Vocabulary,
    position: int | None,
    n_targets: int | None,
    segment_len: int,
) -> TextAttention:
    """Return the attention of every head on the memory, of the query before each target.

    The text before the piece is read in segments, as in evaluation, from so far back that every state of the
    memory equals that of a stream. The piece is one segment. Without memory, the context is the tokens before the
    piece in its segment.

    Args:
        model: model in evaluation mode, its lengths set.
        tokens: a split, one-dimensional.
        vocabulary: vocabulary of the symbols.
        position: position of the first target in the split; None for the middle, or the nearest that fits.
        n_targets: Q; None for 24, or fewer in short segments: a whole segment, or half of one without memory.
        segment_len: T.

    Raises:
        OptionError: the piece does not fit into a segment, or the split has too few tokens before or after it.
    """
    config, device = model.config, next(model.parameters()).device
    longest = segment_len if config.mem_len else segment_len - 1
    if n_targets is None:
        n_targets = min(DEFAULT_TARGETS, longest if config.mem_len else (segment_len + 1) // 2)
    require(1 <= n_targets <= longest, "text_tokens", n_targets, f"must be in 1 … {longest} ({segment_len=})")
    n_context = config.mem_len or segment_len - n_targets
    first, last = n_context + 1, len(tokens) - n_targets
    allowed = f"must leave room for the memory and {n_targets} tokens in the {len(tokens)} tokens of the split"
    require(first <= last, "mem_len", config.mem_len, allowed)
    position = min(max(first, len(tokens) // 2), last) if position is None else position
    allowed = f"must be in {first} … {last}, the {len(tokens)} tokens of the split minus memory and piece"
    require(first <= position <= last, "text_position", position, allowed)

    start = position - 1  # the first query: the token before the first target
    view = model.with_lengths(ext_len=0)
    boundaries = {start - n_context, start + n_targets}
    if config.mem_len:
        farthest = max(0, start - (config.n_layer + 1) * config.mem_len)
        boundaries = {farthest, *range(start, farthest, -segment_len), start + n_targets}
    memory: Memory | None = None
    for begin, end in pairwise(sorted(boundaries)):
        segment_1T = torch.from_numpy(tokens[begin:end].astype(np.int64))[None].to(device)
        recorded, memory = attention_inputs(view, segment_1T, memory)  # those of the piece remain
    weights = {}
    with torch.no_grad():
        for n, (attention, inputs) in enumerate(recorded, 1):
            of_piece_HQC = attention.probabilities(*inputs)[:, 0, -n_targets:, :n_context].double().cpu().numpy()
            weights.update({f"{n}:{h}": weights_QC for h, weights_QC in enumerate(of_piece_HQC, 1)})
    targets, context = tokens[position : position + n_targets], tokens[start - n_context : start]
    return TextAttention(position, weights, _symbols(vocabulary, targets), _symbols(vocabulary, context))


def most_attended(weights_QC: Array) -> NDArray[np.bool_]:
    """Mark the fifth of the C tokens with the most attention in every row; of equal ones, the later."""
    n_marked = max(1, round(MARKED_SHARE * weights_QC.shape[1]))
    marked = np.zeros(weights_QC.shape, dtype=bool)
    np.put_along_axis(marked, np.argsort(weights_QC, axis=1, kind="stable")[:, -n_marked:], True, axis=1)
    return marked & (weights_QC > 0)


def _symbols(vocabulary: Vocabulary, tokens: np.ndarray) -> list[str]:
    """Return the symbols of tokens; a byte becomes the character with its number, a token of BPE its text."""
    numbers = without_marks(tokens)
    if vocabulary.level == "bpe":
        return [vocabulary.decode([token]) for token in numbers]
    return [vocabulary.symbols[token] if vocabulary.symbols else chr(token) for token in numbers]
