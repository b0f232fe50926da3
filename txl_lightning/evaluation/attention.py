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
from txl_lightning.evaluation.losses import (
    Array,
    device_of,
    with_progress,
)
from txl_lightning.evaluation.options import AttentionOptions
from txl_lightning.evaluation.protocol import Protocol, with_lengths
from txl_lightning.evaluation.scores import describe, wrap
from txl_lightning.evaluation.trained import TrainedModel
from txl_lightning.files import write_atomically, write_json
from txl_lightning.model.attention import Attention
from txl_lightning.model.encodings import LayerPositions
from txl_lightning.model.memory import Memory
from txl_lightning.model.positions import VisibleKeys
from txl_lightning.model.transformer_xl import TransformerXL

MOST_TARGETS = 24  # in Figure 6
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
    corpus, (split,) = open_text(
        trained,
        options,
        options.split,
        ["valid"],
    )
    protocol = protocol_of(trained, options, whole=split == WHOLE)
    model = protocol.model()
    maps = attention_maps(
        model,
        protocol.streams(corpus, split),
        protocol.evaluation.max_segments,
    )
    heads = farthest_heads(maps.mean_distance_NH)
    names = [f"{layer + 1}:{head + 1}" for layer, head in heads]
    settings = protocol.settings()
    results = {
        "checkpoint": str(options.checkpoint),
        "step": trained.step,
        "corpus": corpus.facts(),
        "split": split,
        "evaluation": settings,
        "queries": maps.queries,
        "mean_distance": maps.mean_distance_NH.tolist(),
        "text": {"position": maps.text.position, "heads": names},
    }
    arrays: Any = maps.by_distance
    write_atomically(
        directory / "attention.npz",
        lambda path: np.savez_compressed(path, **arrays),
    )
    write_json(directory / "attention.json", results, allow_nan=False)
    averaged = f"average over {maps.queries:,} tokens of {corpus.name} ({split})"
    write_figures(maps, corpus.vocabulary, heads, averaged, directory)
    log_results("attention", results, options, directory)
    return wrap(f"{averaged}; heads of text.svg: {', '.join(names)}; {describe(settings)}")


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
    mem_len = protocol.lengths.mem_len or 0
    allowed = "must be >= 1: distances are counted back into the memory"
    require(mem_len > 0, "mem_len", mem_len, allowed)
    return replace(protocol, clamped=True, cached=False)


def farthest_heads(mean_distance_NH: Array) -> list[tuple[int, int]]:
    """Return layer and head with the largest mean distance in the first, the middle and the last layer."""
    last = len(mean_distance_NH) - 1
    layers = sorted({0, last // 2, last})
    return [(layer, int(mean_distance_NH[layer].argmax())) for layer in layers]


class AttentionMaps(NamedTuple):
    """Averages over queries, for N·H = R heads, layer by layer, and one piece of text.

    Args:
        by_distance: for `all` terms and each single term, [R, L]: share of attention at the distances 0, …, L - 1;
            every row sums to 1.
        mean_distance_NH: mean of Σ_j P_ij (i - j), in tokens, over all distances, also beyond L.
        queries: queries in the average.
        text: attention in the middle segment.
    """

    by_distance: dict[str, Array]
    mean_distance_NH: Array
    queries: int
    text: TextAttention


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


def sums_by_distance(
    attention: Attention, inputs: AttentionInputs, counted_BT: Tensor, term: str
) -> Tensor:
    """Return sums over the counted queries by distance, [H, K], in float64; keys after a query have no weight."""
    single = None if term == ALL_TERMS else term
    weights_HBTK = attention.logits(
        *inputs,
        terms=single,
    ).softmax(-1)
    weights_HTK = (weights_HBTK * counted_BT[:, :, None]).sum(
        dim=1,
        dtype=torch.float64,
    )
    H, T, K = weights_HTK.shape
    keys_K = torch.arange(K, device=weights_HTK.device)
    distances_TK = (keys_K[K - T :, None] - keys_K).clamp(min=0)
    sums_HK = weights_HTK.new_zeros(H, K)
    return sums_HK.index_add_(1, distances_TK.flatten(), weights_HTK.flatten(1))


def counted_queries(inputs: AttentionInputs, reach: int, n_before: int) -> Tensor:
    """Return which queries of a segment see `reach` tokens, [B or 1, T], after n_before tokens in the memory."""
    n_keys = (inputs.visible.mask_TK == 0).sum(dim=-1)  # documents hide keys
    # A memory of zeros has keys that are no tokens.
    n_tokens_T = (
        n_before
        + 1
        + torch.arange(
            n_keys.shape[-1],
            device=n_keys.device,
        )
    )
    return torch.minimum(n_keys, n_tokens_T) >= reach


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
    device = device_of(model)
    reach = config.attention_len or config.mem_len + 1
    terms = [
        ALL_TERMS,
        *(term for term in SCORES if term in config.active_terms),
    ]
    shape = (len(terms), config.n_layer, config.n_head, config.mem_len + streams.segment_len)
    sums = torch.zeros(shape, dtype=torch.float64, device=device)
    n_queries = 0
    memory = None
    n_segments = min(len(streams), max_segments or len(streams))
    for index in with_progress(range(n_segments), n_segments, "attention"):
        n_before = index * streams.segment_len
        tokens_BT = streams[index].tokens.to(device)
        recorded, memory = attention_inputs(model, tokens_BT, memory)
        if index == n_segments // 2:
            text = text_attention(recorded, streams, index)
        for layer, (attention, inputs) in enumerate(recorded):
            counted_BT = counted_queries(inputs, reach, min(n_before, config.mem_len))
            counted_BT = counted_BT.expand(len(tokens_BT), -1)
            for place, term in enumerate(terms):
                sums_HK = sums_by_distance(attention, inputs, counted_BT, term)
                sums[place, layer, :, : sums_HK.shape[1]] += sums_HK
        n_queries += int(counted_BT.sum())
    allowed = f"must be shorter: no query sees {reach} keys in streams and documents of this length"
    require(n_queries > 0, "mem_len", config.mem_len, allowed)
    shares = shares_of(sums[..., :reach]).cpu().numpy()
    distances_S = torch.arange(
        shape[-1],
        dtype=torch.float64,
        device=device,
    )
    mean_distance_NH = (sums[0] @ distances_S / n_queries).cpu().numpy()
    by_distance = dict(zip(terms, shares, strict=True))
    return AttentionMaps(by_distance, mean_distance_NH, n_queries, text)


def shares_of(sums: Tensor) -> Tensor:
    """Return sums [terms, N, H, L] as rows [terms, N·H, L] that sum to 1."""
    rows = sums.flatten(1, 2)
    return rows / rows.sum(dim=-1, keepdim=True)


def text_attention(recorded: Recorded, streams: Streams, index: int) -> TextAttention:
    """Return the first stream's attention to the memory in a segment, for at most 24 targets."""
    layers = []
    for attention, inputs in recorded:
        n_memory = inputs.memory_BMD.shape[1]
        weights_HQK = attention.logits(*inputs)[:, 0, :MOST_TARGETS].softmax(-1)
        layers.append(weights_HQK[:, :, :n_memory].double().cpu().numpy())
    weights_NHQC = np.stack(layers)
    Q, C = weights_NHQC.shape[2:]
    position = int(streams.positions(index)[0, 0])
    targets = streams.tokens[position : position + Q]
    context = streams.tokens[position - 1 - C : position - 1]
    return TextAttention(position, weights_NHQC, targets, context)
