"""`txl attention`: where the heads of a checkpoint attend, over a split and on a piece of text (Figures 5-7).

The model runs as in any evaluation. The inputs of its attention modules are recorded, from which the scores of all
terms and of single terms are computed again. Only sums over queries are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook

from txl_lightning.data.corpus import WHOLE, Corpus
from txl_lightning.data.streams import Streams
from txl_lightning.data.vocabulary import without_marks
from txl_lightning.errors import require
from txl_lightning.evaluation.attention_figures import SCORES, write_figures
from txl_lightning.evaluation.commands import (
    corpus_and_split,
    log_results,
    open_checkpoint,
    options_as_typed,
)
from txl_lightning.evaluation.losses import Array, device_of, number_of_segments, with_progress
from txl_lightning.evaluation.options import AttentionOptions
from txl_lightning.evaluation.protocol import Protocol
from txl_lightning.evaluation.scores import describe, wrap
from txl_lightning.evaluation.trained import TrainedModel
from txl_lightning.files import write_atomically, write_json
from txl_lightning.model.attention import Attention
from txl_lightning.model.encodings import LayerPositions
from txl_lightning.model.memory import Memory
from txl_lightning.model.positions import VisibleKeys
from txl_lightning.model.transformer_xl import TransformerXL

LENGTHS = ("batch_size", "segment_len", "mem_len", "same_length", "clamp_len", "max_segments")
MOST_TARGETS = 24  # of Figure 6
ALL_TERMS = "all"


@options_as_typed()
def run(options: AttentionOptions, directory: Path) -> list[str]:
    """Average attention over a split; write `attention.json`, `attention.npz` and the figures.

    Returns:
        Lines to print: what was averaged, and which heads Figure 6 shows.

    Raises:
        UserError: an option, the checkpoint or the corpus is not usable.
    """
    trained = open_checkpoint(options)
    protocol = protocol_of(trained, options)
    model = protocol.model()
    corpus, split = corpus_and_split(trained, options, "valid")
    # The text first: an error in its options ends the command before the long pass over the split.
    text = text_attention(
        model,
        corpus,
        split,
        options.text_position,
        protocol.lengths.segment_len,
    )
    for head in options.heads or ():
        allowed = f"must be LAYER:HEAD, layers 1 … {model.config.n_layer} and heads 1 … {model.config.n_head}"
        require(head in text.weights, "heads", head, allowed)
    max_segments = options.max_segments if split == WHOLE else protocol.evaluation.max_segments
    maps = attention_maps(model, protocol.streams(corpus, split), max_segments)
    heads = options.heads
    if heads is None:
        heads = farthest_heads(maps.averages["mean_distance"], model.config.n_head)
    results: dict[str, Any] = {
        "checkpoint": str(options.checkpoint),
        "step": trained.step,
        "corpus": {"name": corpus.name, "sha256": corpus.checksum},
        "split": split,
        "evaluation": protocol.settings(),
        "encoding": model.config.encoding,
        "terms": model.config.active_terms,
        "distances": maps.by_distance[ALL_TERMS].shape[1],
        "queries": maps.queries,
        "heads": maps.rows(model.config.n_head),
        "text": {"position": text.position, "targets": len(text.targets), "heads": heads},
    }
    arrays: Any = maps.by_distance
    write_atomically(directory / "attention.npz", lambda path: np.savez_compressed(path, **arrays))
    write_json(directory / "attention.json", results, allow_nan=False)
    write_figures(results, maps.by_distance, text, directory)
    log_results("attention", results, options, directory)
    queries = f"{maps.queries:,} tokens of {corpus.name} ({split})"
    settings = describe(protocol.settings())
    return wrap(f"average over {queries}; heads of text.svg: {', '.join(heads)}; {settings}")


def protocol_of(trained: TrainedModel, options: AttentionOptions) -> Protocol:
    """Return the protocol at the lengths of the command; the others are the run's.

    Raises:
        OptionError: the model is no Transformer-XL whose keys are its tokens, or a length is not allowed.
    """
    fits = (
        isinstance(trained.model, TransformerXL) and "one-pass windows" not in trained.model.cannot
    )
    allowed = f"is {trained.config.model.name}; must be a Transformer-XL whose keys are its tokens"
    require(fits, "checkpoint", options.checkpoint, allowed)
    evaluation = replace(trained.config.evaluation, ext_len=0)
    for name in LENGTHS:
        value = getattr(options, name)
        if value is not None:
            evaluation = replace(evaluation, **{name: value})
    protocol = Protocol(trained, evaluation, clamped=True, cached=False)
    mem_len = protocol.lengths.mem_len or 0
    require(
        mem_len > 0, "mem_len", mem_len, "must be >= 1: distances are counted back into the memory"
    )
    return protocol


def farthest_heads(mean_distance_R: Array, n_head: int) -> list[str]:
    """Return the head with the largest mean distance in the first, the middle and the last layer, as in Figure 6."""
    farthest_N = mean_distance_R.reshape(-1, n_head).argmax(axis=1)
    n_layer = len(farthest_N)
    layers = sorted({0, (n_layer - 1) // 2, n_layer - 1})
    return [f"{layer + 1}:{farthest_N[layer] + 1}" for layer in layers]


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

    def rows(self, n_head: int) -> list[dict[str, Any]]:
        """Return layer and head, counted from 1, and the averages of every head."""
        rows = []
        for row in range(len(self.averages["mean_distance"])):
            values: dict[str, Any] = {"layer": row // n_head + 1, "head": row % n_head + 1}
            for name, average_R in self.averages.items():
                values[name] = float(average_R[row])
            rows.append(values)
        return rows


class AttentionInputs(NamedTuple):
    """Inputs of `Attention.forward` and `Attention.logits`."""

    hidden_BTD: Tensor
    memory_BMD: Tensor
    positions: LayerPositions
    visible: VisibleKeys


Recorded = list[tuple[Attention, AttentionInputs]]
"""The attention module of every layer with its inputs."""


@torch.no_grad()
def attention_inputs(
    model: TransformerXL, tokens_BT: Tensor, memory: Memory | None = None
) -> tuple[Recorded, Memory]:
    """Run the model; return the attention module of every layer with its inputs, and the next memory."""
    recorded: Recorded = []

    def record(module: Any, inputs: tuple[Any, ...]) -> None:
        if isinstance(module, Attention):
            recorded.append((module, AttentionInputs(*inputs)))

    with register_module_forward_pre_hook(record):
        _, memory = model(tokens_BT, memory)
    return recorded, memory


def sums_of_heads(
    attention: Attention, inputs: AttentionInputs, counted_BT: Tensor, terms: Sequence[str]
) -> dict[str, Tensor]:
    """Return sums over the counted queries in float64: by term [H, distances], of entropy and memory [H, 1]."""
    n_memory = inputs.memory_BMD.shape[1]
    sums = {}
    for term in terms:
        logits_HBTK = attention.logits(*inputs, terms=None if term == ALL_TERMS else term)
        weights_HBTK = logits_HBTK.softmax(-1) * counted_BT[:, :, None]
        weights_HTK = weights_HBTK.sum(dim=1, dtype=torch.float64)
        sums[term] = with_distances(weights_HTK, n_memory).sum(dim=1)
        if term == ALL_TERMS:
            entropy_HBTK = torch.special.entr(weights_HBTK)
            entropy_H = entropy_HBTK.sum(dim=(1, 2, 3), dtype=torch.float64)
            sums["entropy"] = entropy_H[:, None]
            in_memory_H = weights_HTK[:, :, :n_memory].sum(dim=(1, 2))
            sums["in_memory"] = in_memory_H[:, None]
    return sums


def counted_queries(recorded: Recorded, n_streams: int, reach: int, n_before: int) -> Tensor:
    """Return which queries see all distances, [B, T].

    Args:
        recorded: inputs of the layers in a segment.
        n_streams: B.
        reach: number of keys that such a query sees.
        n_before: tokens in the memory. A memory of zeros has keys that are no tokens.
    """
    _, inputs = recorded[0]
    n_keys = (inputs.visible.mask_TK == 0).sum(dim=-1)  # documents hide keys
    counted_BT = (n_keys >= reach).expand(n_streams, -1).clone()
    counted_BT[:, : max(0, reach - 1 - n_before)] = False
    return counted_BT


@torch.no_grad()
def attention_maps(
    model: TransformerXL, streams: Streams, max_segments: int | None = None
) -> AttentionMaps:
    """Average attention over the streams of a split, the memory carried from segment to segment.

    Averaged are the queries that see all L distances: L = M + 1, or with `same_length` M (with `extra_key` M + 1).
    Takes O(N·H·(M + T)) float64 numbers besides one batch.

    Args:
        model: model with a memory and without extended context, in evaluation mode.
        streams: streams of one split.
        max_segments: stop after this many segments.

    Raises:
        OptionError: the streams are too short: no query sees L keys.
    """
    config = model.config
    device = device_of(model)
    reach = config.attention_len or config.mem_len + 1
    terms = [term for term in (ALL_TERMS, *SCORES) if term in (ALL_TERMS, *config.active_terms)]
    n_distances = config.mem_len + streams.segment_len
    zeros_NHS = torch.zeros(
        config.n_layer,
        config.n_head,
        n_distances,
        dtype=torch.float64,
    )
    sums = {name: zeros_NHS.to(device, copy=True) for name in (*terms, "entropy", "in_memory")}
    n_queries = 0
    n_read = 0
    memory = None
    segments = range(number_of_segments(streams, max_segments))
    for index in with_progress(segments, len(segments), "attention"):
        tokens_BT = streams[index].tokens.to(device)
        recorded, memory = attention_inputs(model, tokens_BT, memory)
        n_before = min(n_read, config.mem_len)
        counted_BT = counted_queries(recorded, len(tokens_BT), reach, n_before)
        for layer, (attention, inputs) in enumerate(recorded):
            for name, sums_HS in sums_of_heads(attention, inputs, counted_BT, terms).items():
                sums[name][layer, :, : sums_HS.shape[1]] += sums_HS
        n_queries += int(counted_BT.sum())
        n_read += tokens_BT.shape[1]
    allowed = f"must be shorter: no query sees {reach} keys in streams and documents of this length"
    require(n_queries > 0, "mem_len", config.mem_len, allowed)
    return averaged(sums, n_queries, terms, reach)


def averaged(
    sums: dict[str, Tensor], n_queries: int, terms: Sequence[str], reach: int
) -> AttentionMaps:
    """Return averages from sums over queries, [N, H, distances]."""
    means: dict[str, Array] = {}
    for name, sums_NHS in sums.items():
        means[name] = sums_NHS.flatten(0, 1).cpu().numpy() / n_queries
    by_distance = {}
    for term in terms:
        near_RL = means[term][:, :reach]
        by_distance[term] = near_RL / near_RL.sum(axis=1, keepdims=True)
    averages = {
        "entropy_bits": means["entropy"][:, 0] / np.log(2),
        "mean_distance": means[ALL_TERMS] @ np.arange(means[ALL_TERMS].shape[1]),
        "in_memory": means["in_memory"][:, 0],
    }
    return AttentionMaps(by_distance, averages, n_queries)


def with_distances(weights_XTK: Tensor, n_before: int) -> Tensor:
    """Turn columns of keys into columns of distances 0, …, K - 1: the inverse of `relative_shift`.

    Args:
        weights_XTK: attention of T queries, zero on keys of the future.
        n_before: number of keys before the first query's own.
    """
    T, K = weights_XTK.shape[-2:]
    queries_T1 = torch.arange(T, device=weights_XTK.device)[:, None]
    distances_K = torch.arange(K, device=weights_XTK.device)
    keys_TS = n_before + queries_T1 - distances_K
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
    model: TransformerXL, corpus: Corpus, split: str, position: int | None, segment_len: int
) -> TextAttention:
    """Return the attention of every head on the memory, from a piece of text of 24 tokens, or of a shorter segment.

    The memory is filled with the tokens before the piece, read in segments as everywhere, from as far back as any layer
    can see; the piece is one segment.

    Args:
        model: model with a memory and without extended context, in evaluation mode.
        corpus: corpus with the text.
        split: name of its split.
        position: position of the first target in the split; None for the middle, or the nearest that fits.
        segment_len: T.

    Raises:
        OptionError: the split has too few tokens before or after the piece.
    """
    tokens = corpus.splits[split]
    mem_len = model.config.mem_len
    n_targets = min(MOST_TARGETS, segment_len)
    position = place_of_text(position, len(tokens), mem_len, n_targets)

    def read(begin: int, end: int, memory: Memory | None) -> tuple[Recorded, Memory]:
        tokens_1T = torch.from_numpy(tokens[begin:end].astype(np.int64))[None]
        return attention_inputs(model, tokens_1T.to(device_of(model)), memory)

    start = position - 1  # the first query: the token before the first target
    farthest = max(0, start - (model.config.n_layer + 1) * mem_len)
    memory = None
    for begin, end in pairwise([farthest, *reversed(range(start, farthest, -segment_len))]):
        _, memory = read(begin, end, memory)
    recorded, _ = read(start, start + n_targets, memory)
    weights = {}
    for layer, (attention, inputs) in enumerate(recorded, 1):
        weights_HTK = attention.logits(*inputs).softmax(-1)[:, 0]
        for head, weights_TK in enumerate(weights_HTK.double().cpu().numpy(), 1):
            weights[f"{layer}:{head}"] = weights_TK[:, :mem_len]
    numbers = without_marks(tokens[start - mem_len : position + n_targets])
    symbols = [corpus.vocabulary.decode([number]) for number in numbers]
    return TextAttention(
        position,
        weights,
        symbols[mem_len + 1 :],
        symbols[:mem_len],
    )


def place_of_text(position: int | None, n_tokens: int, mem_len: int, n_targets: int) -> int:
    """Return the position of the first target."""
    first = mem_len + 1
    last = n_tokens - n_targets
    allowed = f"must leave room for the memory and {n_targets} tokens in the {n_tokens} tokens of the split"
    require(first <= last, "mem_len", mem_len, allowed)
    if position is None:
        return min(max(first, n_tokens // 2), last)
    require(
        first <= position <= last,
        "text_position",
        position,
        f"must be in {first} … {last}",
    )
    return position
