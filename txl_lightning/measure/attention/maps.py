"""Attention by relative position, averaged over a split (Figures 5 and 7).

The model runs as in any evaluation. Hooks record the inputs of its attention modules, from which the scores of all
terms and of single terms are computed again. Only sums over queries are kept.

Single terms are not unique: a constant m added to q and taken from u and v changes no score, but moves weight between
(a) and (c), and between (b) and (d). The centred split chooses m so that the mean query of each head is zero:

    (a) (q_i - m)·k_j    (c) (u + m)·k_j    (b) (q_i - m)·r_{i-j}    (d) (v + m)·r_{i-j},    m = mean of q_i

Forgetting, D_ij of `model.forget_gate`, is a part of (c) in both splits.
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
from torch import Tensor
from tqdm import tqdm

from txl_lightning.config.architecture import TransformerXLConfig
from txl_lightning.data.documents import without_marks
from txl_lightning.data.streams import Streams
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.errors import require
from txl_lightning.model.attention import Attention
from txl_lightning.model.encodings import LayerPositions
from txl_lightning.model.kernels import eager
from txl_lightning.model.memory import Memory
from txl_lightning.model.positions import VisibleKeys
from txl_lightning.model.transformer_xl import TransformerXL

ALL_TERMS = "all"
SINGLE_TERMS = "abd"  # u·k does not depend on the query: the paper shows no softmax of (c) alone

Array = NDArray[np.float64]
MARKED_SHARE = 0.2  # of the context, for each target
DEFAULT_TARGETS = 24
CENTRED = "_centred"  # end of the names of single terms of the centred split


@dataclass(frozen=True)
class AttentionMaps:
    """Averages over queries, one row per head, layer by layer (R = N·H rows).

    Args:
        by_distance: for `all` terms, each shown term and, of an encoding with all four terms, each shown term of the
            centred split (`a_centred`), [R, L]: share of attention at the distances 0, …, L - 1; every row sums to 1.
        averages: by name, [R]. entropy_bits: mean of -Σ_j P_ij log2 P_ij. mean_distance: mean of Σ_j P_ij (i - j), in
            tokens, over all distances. in_segment, in_memory: shares of attention on the query's own segment and on
            the memory. beyond: share at distances >= L, which are not in the rows.
        queries: number of queries averaged.
    """

    by_distance: dict[str, Array]
    averages: dict[str, Array]
    queries: int


def shown_terms(config: TransformerXLConfig) -> str:
    """Return the terms whose softmax alone is shown, where the model has them: with a forget gate also (c)."""
    return "abcd" if config.forget_gate else SINGLE_TERMS


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
    batch. A model with all four terms reads the streams twice: first for the mean queries of the centred split.

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
    shown = shown_terms(config)
    names = [ALL_TERMS, *(term for term in shown if term in config.logit_terms)]
    centres = set(config.active_terms) == set("abcd")
    names += [term + CENTRED for term in shown if centres]
    zeros = partial(torch.zeros, config.n_layer, config.n_head, dtype=torch.float64, device=device)
    sums_NHS = {name: zeros(config.mem_len + streams.segment_len + config.ext_len) for name in names}
    entropy_NH, in_memory_NH, mean_NHE = zeros(), zeros(), zeros(config.d_head)

    def read(add: Callable[[int, Attention, AttentionInputs, int, Tensor], None]) -> int:
        """Call `add` for every layer and segment, with the first query that may count and a mask of those that do.

        Returns the number of queries that count.
        """
        memory, n_read, first, counted = None, 0, 0, 0

        def see(n: int, attention: Attention, inputs: AttentionInputs) -> None:
            nonlocal counted
            visible_TK = inputs.visible.mask_TK[..., first:, :] == 0
            enough_BT = (visible_TK.sum(dim=-1) >= reach).expand(len(inputs.hidden_BTD), -1)
            counted += int(enough_BT.sum()) if n == 0 else 0
            add(n, attention, inputs, first, enough_BT)

        with watched(model, see):
            for index in tqdm(range(n_segments), desc="attention", unit="segment", disable=None, leave=False):
                tokens_BT, n_targets = streams[index].tokens.to(device), streams[index].targets.shape[1]
                T = tokens_BT.shape[1]
                # Query i sees the filled memory and i + 1 tokens of its segment; extended context has no targets.
                first = min(T, max(T - n_targets, reach - 1 - min(n_read, config.mem_len)))
                _, memory = model(tokens_BT, memory)
                n_read += max(0, T - config.ext_len)
        return counted

    def add_queries(n: int, attention: Attention, inputs: AttentionInputs, first: int, enough_BT: Tensor) -> None:
        q_HBTE, _ = attention.project(inputs.hidden_BTD)
        assert q_HBTE is not None
        mean_NHE[n] += (q_HBTE[:, :, first:] * enough_BT[:, :, None]).sum(dim=(1, 2), dtype=torch.float64)

    def add_weights(n: int, attention: Attention, inputs: AttentionInputs, first: int, enough_BT: Tensor) -> None:
        n_memory = inputs.memory_BMD.shape[1]
        for name in names:
            if name == ALL_TERMS:
                weights_HBTK = attention.probabilities(*inputs)
            elif name.endswith(CENTRED):
                weights_HBTK = centred_logits(attention, inputs, mean_NHE[n], name.removesuffix(CENTRED)).softmax(-1)
            else:
                weights_HBTK = attention.logits(*inputs, terms=name).softmax(-1)
            weights_HBTK = weights_HBTK[:, :, first:] * enough_BT[:, :, None]
            weights_HTK = weights_HBTK.sum(dim=1, dtype=torch.float64)
            of_distance_HS = with_distances(weights_HTK, n_memory + first).sum(dim=1)
            sums_NHS[name][n, :, : of_distance_HS.shape[1]] += of_distance_HS
            if name == ALL_TERMS:
                entropy_NH[n] += torch.special.entr(weights_HBTK).sum(dim=(1, 2, 3), dtype=torch.float64)
                in_memory_NH[n] += weights_HTK[:, :, :n_memory].sum(dim=(1, 2))

    if centres:
        mean_NHE /= max(1, read(add_queries))
    queries = read(add_weights)
    allowed = f"must be shorter: no document lets a query see {reach} keys"
    require(queries > 0, "mem_len" if config.mem_len else "segment_len", config.mem_len or reach, allowed)

    def mean(sums_NH: Tensor) -> Array:
        return sums_NH.flatten(0, 1).cpu().numpy() / queries

    means, in_memory = {name: mean(sums) for name, sums in sums_NHS.items()}, mean(in_memory_NH)
    within, all_terms = {name: rows[:, :reach] for name, rows in means.items()}, means[ALL_TERMS]
    averages = {
        "entropy_bits": mean(entropy_NH) / np.log(2),
        "mean_distance": all_terms @ np.arange(all_terms.shape[1]),
        "in_segment": 1 - in_memory,
        "in_memory": in_memory,
        "beyond": all_terms[:, reach:].sum(axis=1),
    }
    by_distance = {name: rows / rows.sum(axis=1, keepdims=True) for name, rows in within.items()}
    return AttentionMaps(by_distance, averages, queries)


class AttentionInputs(NamedTuple):
    """Inputs of `Attention.forward` and `Attention.logits`."""

    hidden_BTD: Tensor
    memory_BMD: Tensor
    positions: LayerPositions
    visible: VisibleKeys


@contextmanager
def watched(model: TransformerXL, see: Callable[[int, Attention, AttentionInputs], None]) -> Iterator[None]:
    """Call `see` with layer n, its attention module and the module's inputs, whenever the model runs in the block."""

    def hook(n: int, attention: Attention, inputs: tuple[Any, ...]) -> None:
        see(n, attention, AttentionInputs(*inputs))

    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    with ExitStack() as hooks:
        for n, attention in enumerate(attentions):
            hooks.enter_context(attention.register_forward_pre_hook(partial(hook, n)))
        yield


def centred_logits(attention: Attention, inputs: AttentionInputs, mean_HE: Tensor, terms: str) -> Tensor:
    """Return the logits of some terms, [H, B, T, K], with `mean_HE` taken from every query and added to u and v."""
    q_HBTE, kv_PHBKE = attention.project(inputs.hidden_BTD, inputs.memory_BMD)
    assert q_HBTE is not None
    mean_HE = mean_HE.to(q_HBTE.dtype)
    u_HE, v_HE = (
        mean_HE if bias is None else bias + mean_HE for bias in (inputs.positions.u_HE, inputs.positions.v_HE)
    )
    positions = inputs.positions._replace(u_HE=u_HE, v_HE=v_HE).of_terms(terms)
    forget_HBK = attention.forget_logits(inputs.memory_BMD, inputs.hidden_BTD)
    factors = attention.factors(q_HBTE - mean_HE[:, None, None], kv_PHBKE, positions, inputs.visible, terms, forget_HBK)
    return eager.logits(factors).unflatten(0, factors.keys.shape[:2])


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


@torch.no_grad()
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
    require(longest >= 1, "segment_len", segment_len, "must be >= 2 without memory: a target needs context")
    if n_targets is None:
        n_targets = min(DEFAULT_TARGETS, longest if config.mem_len else (segment_len + 1) // 2)
    allowed = f"must be in 1 … {longest} (segment_len={segment_len})"
    require(1 <= n_targets <= longest, "text_tokens", n_targets, allowed)
    n_context = config.mem_len or segment_len - n_targets
    first, last = n_context + 1, len(tokens) - n_targets
    allowed = f"must leave room for memory and piece in the {len(tokens)} tokens of the split"
    require(first <= last, "mem_len" if config.mem_len else "segment_len", config.mem_len or segment_len, allowed)
    position = min(max(first, len(tokens) // 2), last) if position is None else position
    allowed = f"must be in {first} … {last}, the {len(tokens)} tokens of the split minus memory and piece"
    require(first <= position <= last, "text_position", position, allowed)

    start = position - 1  # the first query: the token before the first target
    view = model.with_lengths(ext_len=0)
    boundaries = {start - n_context, start + n_targets}
    if config.mem_len:
        farthest = max(0, start - (config.n_layer + 1) * config.mem_len)
        boundaries = {farthest, *range(start, farthest, -segment_len), start + n_targets}
    *earlier, piece = (torch.from_numpy(tokens[a:b].astype(np.int64)) for a, b in pairwise(sorted(boundaries)))
    memory: Memory | None = None
    for segment_T in earlier:
        _, memory = view(segment_T[None].to(device), memory)

    weights: dict[str, Array] = {}

    def see(n: int, attention: Attention, inputs: AttentionInputs) -> None:
        weights_HTK = attention.probabilities(*inputs)[:, 0]
        weights_HQC = weights_HTK[:, -n_targets:, :n_context].double().cpu().numpy()
        weights.update({f"{n + 1}:{h}": weights_QC for h, weights_QC in enumerate(weights_HQC, 1)})

    with watched(view, see):
        view(piece[None].to(device), memory)
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
