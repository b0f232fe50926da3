"""`txl attention`: where a checkpoint's heads attend, over a split and on a piece of text (Figures 5-7).

The model runs as in any evaluation. The inputs to its attention modules are recorded; the scores with all terms and
with single terms are computed again from them. Only sums over queries are kept.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook

from txl_lightning.data.corpus import WHOLE
from txl_lightning.data.streams import Streams
from txl_lightning.errors import require
from txl_lightning.evaluation.attention_figures import SCORES, write_figures
from txl_lightning.evaluation.commands import (
    log_results,
    open_checkpoint,
    open_text,
    options_as_typed,
)
from txl_lightning.evaluation.losses import Array, device_of, with_progress
from txl_lightning.evaluation.options import AttentionOptions
from txl_lightning.evaluation.protocol import Protocol, with_lengths
from txl_lightning.evaluation.trained import TrainedModel
from txl_lightning.files import write_atomically, write_json
from txl_lightning.model.attention import Attention
from txl_lightning.model.encodings import LayerPositions
from txl_lightning.model.memory import Memory
from txl_lightning.model.positions import VisibleKeys
from txl_lightning.model.transformer_xl import TransformerXL

MOST_TARGETS = 24  # in Figure 6


@options_as_typed()
def run(options: AttentionOptions, directory: Path) -> list[str]:
    """Average attention over a split; write `attention.json`, `attention.npz` and the figures.

    Returns:
        Lines to print: what was averaged, and which heads Figure 6 shows.

    Raises:
        UserError: an option, the checkpoint or the corpus is not usable.
    """
    trained = open_checkpoint(options)
    corpus, (split,) = open_text(
        trained,
        options,
        options.split,
        ["valid"],
    )
    protocol = protocol_of(trained, options, whole=split == WHOLE)
    maps = attention_maps(
        protocol.model(), protocol.streams(corpus, split), protocol.evaluation.max_segments
    )
    write_atomically(
        directory / "attention.npz", lambda path: np.savez_compressed(path, **maps.by_distance)
    )
    heads = farthest_heads(maps.mean_distance_NH)
    averaged = f"average over {maps.queries:,} tokens of {corpus.name} ({split})"
    write_figures(maps, corpus.vocabulary, heads, averaged, directory)
    results = {
        "checkpoint": str(options.checkpoint),
        "step": trained.step,
        "corpus": corpus.facts(),
        "split": split,
        "evaluation": protocol.settings(),
        "queries": maps.queries,
        "mean_distance": maps.mean_distance_NH.tolist(),
        "text": {
            "position": maps.text.position,
            "heads": [f"{layer + 1}:{head + 1}" for layer, head in heads],
        },
    }
    write_json(directory / "attention.json", results, allow_nan=False)
    log_results("attention", results, options, directory)
    return [averaged]


def protocol_of(trained: TrainedModel, options: AttentionOptions, whole: bool) -> Protocol:
    """Return the protocol at the command's lengths; other lengths are the run's.

    Raises:
        OptionError: the model is no Transformer-XL whose keys are its tokens, or a length is not allowed.
    """
    model = trained.model
    fits = isinstance(model, TransformerXL) and "one-pass windows" not in model.cannot
    allowed = f"is {trained.config.model.name}; must be a Transformer-XL whose keys are its tokens"
    require(fits, "checkpoint", options.checkpoint, allowed)
    protocol = with_lengths(trained, options, whole, ext_len=0)
    protocol = replace(protocol, clamped=True, cached=False)
    mem_len = protocol.lengths.mem_len
    allowed = "must be >= 1: distances are counted back into the memory"
    require(bool(mem_len), "mem_len", mem_len, allowed)
    return protocol


def farthest_heads(mean_distance_NH: Array) -> list[tuple[int, int]]:
    """Return layer and head with the largest mean distance in the first, the middle and the last layer."""
    last = len(mean_distance_NH) - 1
    return [
        (layer, int(mean_distance_NH[layer].argmax())) for layer in sorted({0, last // 2, last})
    ]


class TextAttention(NamedTuple):
    """Attention from a piece of text to the tokens in its memory, for the first stream.

    Args:
        position: the first target's position in the split.
        weights_NHQC: attention of the query before each of the Q targets on C tokens.
        targets: Q tokens.
        context: C tokens, the oldest first.
    """

    position: int
    weights_NHQC: Array
    targets: NDArray[np.integer]
    context: NDArray[np.integer]


class AttentionMaps(NamedTuple):
    """Averages over queries, for N·H = R heads, layer by layer, and one piece of text.

    Args:
        by_distance: for `all` terms and each single term, [R, L]: share of attention at the distances 0, …, L - 1;
            every row sums to 1.
        mean_distance_NH: mean of Σ_j P_ij (i - j), in tokens, over all distances, also beyond L.
        queries: queries in the average.
        text: attention in the middle segment.
    """

    by_distance: dict[str, Any]
    mean_distance_NH: Array
    queries: int
    text: TextAttention


class AttentionInputs(NamedTuple):
    """Inputs to `Attention.forward` and `Attention.logits`."""

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
    """Run the model; return each layer's attention module with its inputs, and the next memory."""
    recorded: Recorded = []

    def record(module: Any, inputs: tuple[Any, ...]) -> None:
        if isinstance(module, Attention):
            recorded.append((module, AttentionInputs(*inputs)))

    with register_module_forward_pre_hook(record):
        _, memory = model(tokens_BT, memory)
    return recorded, memory


def sums_by_distance(weights_HBTK: Tensor, counted_BT: Tensor, n_distances: int) -> Tensor:
    """Return sums over the counted queries by distance, [H, n_distances], in float64."""
    weights_HTK = (weights_HBTK * counted_BT[:, :, None]).sum(dim=1, dtype=torch.float64)
    H, T, K = weights_HTK.shape
    keys_K = torch.arange(K, device=weights_HTK.device)
    distances_TK = (keys_K[K - T :, None] - keys_K).clamp(min=0)  # keys after a query: no weight
    sums = weights_HTK.new_zeros(H, n_distances)
    return sums.index_add_(1, distances_TK.flatten(), weights_HTK.flatten(1))


def counted_queries(inputs: AttentionInputs, reach: int, n_before: int) -> Tensor:
    """Return which queries of a segment see `reach` tokens, [B or 1, T], after n_before tokens in the memory."""
    n_keys = (inputs.visible.mask_TK == 0).sum(dim=-1)  # documents hide keys
    places_T = torch.arange(n_keys.shape[-1], device=n_keys.device)
    # A memory of zeros has keys that are no tokens.
    return torch.minimum(n_keys, n_before + 1 + places_T) >= reach


@torch.no_grad()
def attention_maps(
    model: TransformerXL, streams: Streams, max_segments: int | None = None
) -> AttentionMaps:
    """Average attention over a split's streams, with the memory carried from segment to segment.

    Averaged are the queries that see all L distances: L = M + 1, or with `same_length` M (with `extra_key` M + 1).
    The piece of text has 24 targets, or a shorter segment's.
    Takes O(N·H·(M + T)) float64 numbers besides one batch.

    Args:
        model: model with a memory and without extended context, in evaluation mode.
        streams: streams from one split.
        max_segments: stop after this many segments of each.

    Raises:
        OptionError: the streams are too short: no query sees L keys.
    """
    config = model.config
    reach = config.attention_len or config.mem_len + 1
    terms = [term for term in SCORES if term in config.active_terms]
    device = device_of(model)
    n_distances = config.mem_len + streams.segment_len
    shape = (1 + len(terms), config.n_layer, config.n_head, n_distances)
    sums_PNHS = torch.zeros(shape, dtype=torch.float64, device=device)
    n_queries = 0
    memory = None
    n_segments = min(len(streams), max_segments or len(streams))
    for index in with_progress(range(n_segments), n_segments, "attention"):
        n_before = min(index * streams.segment_len, config.mem_len)
        recorded, memory = attention_inputs(
            model,
            streams[index].tokens.to(device),
            memory,
        )
        if index == n_segments // 2:
            text = text_attention(recorded, streams, index)
        for layer, (attention, inputs) in enumerate(recorded):
            counted_BT = counted_queries(inputs, reach, n_before)
            counted_BT = counted_BT.expand(inputs.hidden_BTD.shape[:2])
            for place, term in enumerate([None, *terms]):
                weights_HBTK = attention.logits(*inputs, terms=term).softmax(-1)
                sums_PNHS[place, layer] += sums_by_distance(weights_HBTK, counted_BT, n_distances)
        n_queries += int(counted_BT.sum())
    allowed = f"must be shorter: no query sees {reach} keys in streams and documents of this length"
    require(n_queries > 0, "mem_len", config.mem_len, allowed)
    sums = sums_PNHS.cpu().numpy()
    by_distance = {}
    for name, sums_NHS in zip(["all", *terms], sums, strict=True):
        by_distance[name] = shares(sums_NHS[:, :, :reach])
    mean_distance_NH = sums[0] @ np.arange(n_distances) / n_queries
    return AttentionMaps(by_distance, mean_distance_NH, n_queries, text)


def shares(sums_NHL: Array) -> Array:
    """Return sums for N·H heads as rows that sum to 1, [N·H, L]."""
    rows = sums_NHL.reshape(-1, sums_NHL.shape[-1])
    return rows / rows.sum(axis=1, keepdims=True)


def text_attention(recorded: Recorded, streams: Streams, index: int) -> TextAttention:
    """Return the first stream's attention to the memory in a segment, for at most 24 targets."""
    layers = []
    for attention, inputs in recorded:
        C = inputs.memory_BMD.shape[1]
        weights_HQK = attention.logits(*inputs)[:, 0, :MOST_TARGETS].softmax(-1)
        layers.append(weights_HQK[:, :, :C].double().cpu().numpy())
    weights_NHQC = np.stack(layers)
    position = int(streams.positions(index)[0, 0])
    targets = streams.tokens[position : position + weights_NHQC.shape[2]]
    context = streams.tokens[position - 1 - C : position - 1]
    return TextAttention(position, weights_NHQC, targets, context)
