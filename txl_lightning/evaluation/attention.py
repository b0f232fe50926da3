"""`txl attention`: where the heads of a checkpoint attend, over a split and on a piece of text (Figures 5-7).

The model runs as in any evaluation. The inputs of its attention modules are recorded, from which the scores of all
terms and of single terms are computed again. Only sums over queries are kept.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook
from tqdm import tqdm

from txl_lightning.config.architecture import TransformerXLConfig
from txl_lightning.data.corpus import WHOLE
from txl_lightning.data.streams import Streams
from txl_lightning.data.vocabulary import Vocabulary, without_marks
from txl_lightning.errors import require
from txl_lightning.evaluation.attention_figures import SCORES, write_figures
from txl_lightning.evaluation.commands import (
    corpus_and_split,
    log_results,
    open_checkpoint,
    options_as_typed,
    write_markdown,
)
from txl_lightning.evaluation.losses import Array
from txl_lightning.evaluation.options import AttentionOptions
from txl_lightning.evaluation.protocol import Protocol
from txl_lightning.evaluation.scores import describe
from txl_lightning.evaluation.trained import TrainedModel
from txl_lightning.files import write_atomically, write_json
from txl_lightning.model.attention import Attention
from txl_lightning.model.encodings import LayerPositions
from txl_lightning.model.memory import Memory
from txl_lightning.model.positions import VisibleKeys
from txl_lightning.model.transformer_xl import TransformerXL

OPTIONS = ("batch_size", "segment_len", "mem_len", "same_length", "clamp_len", "max_segments")
MOST_PRINTED = 6  # heads
ALL_TERMS = "all"
DEFAULT_TARGETS = 24


@options_as_typed()
def run(options: AttentionOptions, directory: Path) -> list[str]:
    """Average attention over a split; write `attention.json`, `attention.npz`, the table and figures.

    Returns:
        Lines to print: the heads with the largest mean distance, and notes.

    Raises:
        UserError: an option, the checkpoint or the corpus is not usable.
    """
    started = time.perf_counter()
    trained = open_checkpoint(options)
    protocol = protocol_of(trained, options)
    model = protocol.model()
    corpus, split = corpus_and_split(trained, options, "valid")

    # The text first: an error in its options ends the command before the long pass over the split.
    segment_len = protocol.lengths.segment
    tokens = corpus.splits[split]
    text = text_attention(model, tokens, corpus.vocabulary, options.text_position, options.text_tokens, segment_len)
    check_heads(options.heads, text.weights, model.config)
    max_segments = options.max_segments if split == WHOLE else protocol.evaluation.max_segments
    maps = attention_maps(model, protocol.streams(corpus, split), max_segments)
    results: dict[str, Any] = {
        "checkpoint": str(options.checkpoint),
        "step": trained.step,
        "corpus": {"name": corpus.name, "sha256": corpus.checksum},
        "split": split,
        "evaluation": {
            **protocol.lengths.keywords(),
            "segment_len": segment_len,
            "batch_size": protocol.evaluation.batch_size,
        },
        "encoding": model.config.encoding,
        "terms": model.config.active_terms,
        "distances": maps.by_distance[ALL_TERMS].shape[1],
        "queries": maps.queries,
        "heads": maps.rows(model.config.n_head),
        "text": {
            "position": text.position,
            "targets": len(text.targets),
            "heads": options.heads or farthest_heads(maps.averages["mean_distance"], model.config.n_head),
        },
        "seconds": round(time.perf_counter() - started, 2),
    }
    arrays: Any = maps.by_distance
    write_atomically(directory / "attention.npz", lambda path: np.savez_compressed(path, **arrays))
    write_json(directory / "attention.json", results, allow_nan=False)
    write_figures(results, maps.by_distance, text, directory)
    log_results("attention", results, options, directory)
    return report_lines(results)


def protocol_of(trained: TrainedModel, options: AttentionOptions) -> Protocol:
    """Return the protocol at the lengths of the command; the others are those of the run's own evaluation.

    Raises:
        OptionError: the model is no Transformer-XL whose keys are its tokens, or a length is not allowed.
    """
    fits = isinstance(trained.model, TransformerXL) and "one-pass windows" not in trained.model.cannot
    allowed = f"is {trained.config.model.name}; must be a Transformer-XL whose keys are its tokens"
    require(fits, "checkpoint", options.checkpoint, allowed)
    evaluation = trained.config.evaluation
    for name in OPTIONS:
        value = getattr(options, name)
        if value is not None:
            evaluation = replace(evaluation, **{name: value})
    return Protocol(trained, evaluation, clamped=True, cached=False)


def check_heads(heads: list[str] | None, weights: dict[str, Array], config: TransformerXLConfig) -> None:
    """Refuse heads that the model does not have."""
    allowed = f"must be LAYER:HEAD, layers 1 … {config.n_layer} and heads 1 … {config.n_head}"
    for head in heads or ():
        require(head in weights, "heads", head, allowed)


def farthest_heads(mean_distance_R: Array, n_head: int) -> list[str]:
    """Return the head with the largest mean distance in the first, the middle and the last layer, as in Figure 6."""
    by_layer = mean_distance_R.reshape(-1, n_head)
    n_layer = len(by_layer)
    layers = sorted({0, (n_layer - 1) // 2, n_layer - 1})
    return [f"{layer + 1}:{by_layer[layer].argmax() + 1}" for layer in layers]


def report_lines(results: dict[str, Any]) -> list[str]:
    """Return the lines to print: the heads with the largest mean distance, and how they were averaged."""
    heads = sorted(results["heads"], key=lambda head: -head["mean_distance"])[:MOST_PRINTED]
    rows = []
    for head in heads:
        row = {
            "layer": head["layer"],
            "head": head["head"],
            "entropy (bits)": f"{head['entropy_bits']:.2f}",
            "mean distance (tokens)": f"{head['mean_distance']:.1f}",
            "in the memory (%)": f"{100 * head['in_memory']:.1f}",
        }
        rows.append(row)
    title = f"Heads with the largest mean distance, {len(heads)} of {len(results['heads'])}:"
    note = (
        f"Average over the {results['queries']:,} tokens of {results['corpus']['name']} ({results['split']}) that see "
        f"all {results['distances']} relative positions 0 … −{results['distances'] - 1}; 0 is the query itself, the "
        f"last token read ({describe(results['evaluation'])})."
    )
    return write_markdown(None, title, rows, "", note)


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
def attention_inputs(model: TransformerXL, tokens_BT: Tensor, memory: Memory | None = None) -> tuple[Recorded, Memory]:
    """Run the model; return the attention module of every layer with its inputs, and the next memory."""
    recorded: Recorded = []

    def record(module: Any, inputs: tuple[Any, ...]) -> None:
        if isinstance(module, Attention):
            recorded.append((module, AttentionInputs(*inputs)))

    with register_module_forward_pre_hook(record):
        _, memory = model(tokens_BT, memory)
    return recorded, memory


def attention_reach(config: TransformerXLConfig, segment_len: int) -> int:
    """Return L: attention is averaged over the queries that see all distances 0, …, L - 1.

    With `same_length` every query after the first tokens sees M keys, its own included: L = M (with `extra_key`
    M + 1). Otherwise a query sees M keys and those of its segment: L = M + 1. Without memory a query sees only its
    segment, and L is half a segment: the queries of the second half are averaged.
    """
    if config.mem_len == 0:
        return (segment_len + 1) // 2
    return config.attention_len or config.mem_len + 1


class CountedSegment(NamedTuple):
    """Inputs of all layers in a segment, and which of its queries count."""

    recorded: Recorded
    counted_BT: Tensor


def counted_segments(model: TransformerXL, streams: Streams, n_segments: int, reach: int) -> Iterator[CountedSegment]:
    """Yield the segments of streams, the memory carried.

    Queries that do not yet see L keys, at the start of a stream, of a document after which the memory is reset, or of a
    segment without memory, do not count; nor does extended context, which has no targets.
    """
    config = model.config
    device = next(model.parameters()).device
    memory = None
    n_read = 0
    for index in tqdm(range(n_segments), desc="attention", unit="segment", disable=None, leave=False):
        segment = streams[index]
        tokens_BT = segment.tokens.to(device)
        B, T = tokens_BT.shape
        recorded, memory = attention_inputs(model, tokens_BT, memory)
        # Query i sees the filled memory and i + 1 tokens of its segment.
        first = max(T - segment.targets.shape[1], reach - 1 - min(n_read, config.mem_len))
        n_read += max(0, T - config.ext_len)
        _, inputs = recorded[0]
        n_keys = (inputs.visible.mask_TK == 0).sum(dim=-1)
        counted_BT = (n_keys >= reach).expand(B, -1).clone()
        counted_BT[:, :first] = False
        yield CountedSegment(recorded, counted_BT)


class AttentionSums:
    """Sums over queries, by name, [N, H, distances] in float64: of `all` terms, single terms, entropy and memory."""

    def __init__(self, model: TransformerXL, n_distances: int) -> None:
        config = model.config
        self.terms = [ALL_TERMS, *(term for term in SCORES if term in config.active_terms)]
        device = next(model.parameters()).device
        self.sums: dict[str, Tensor] = {}
        for name in (*self.terms, "entropy", "in_memory"):
            size = n_distances if name in self.terms else 1
            self.sums[name] = torch.zeros(config.n_layer, config.n_head, size, dtype=torch.float64, device=device)
        self.queries = 0

    def add(self, segment: CountedSegment) -> None:
        """Add the queries of a segment."""
        self.queries += int(segment.counted_BT.sum())
        for layer, (attention, inputs) in enumerate(segment.recorded):
            n_memory = inputs.memory_BMD.shape[1]
            for name in self.terms:
                logits_HBTK = attention.logits(*inputs, terms=None if name == ALL_TERMS else name)
                weights_HBTK = logits_HBTK.softmax(-1) * segment.counted_BT[:, :, None]
                weights_HTK = weights_HBTK.sum(dim=1, dtype=torch.float64)
                by_distance_HS = with_distances(weights_HTK, n_memory).sum(dim=1)
                self.sums[name][layer, :, : by_distance_HS.shape[1]] += by_distance_HS
                if name == ALL_TERMS:
                    entropy_H = torch.special.entr(weights_HBTK).sum(dim=(1, 2, 3), dtype=torch.float64)
                    self.sums["entropy"][layer, :, 0] += entropy_H
                    self.sums["in_memory"][layer, :, 0] += weights_HTK[:, :, :n_memory].sum(dim=(1, 2))

    def mean(self, name: str) -> Array:
        """Return the mean over queries, [R, distances]."""
        mean_RS: Array = self.sums[name].flatten(0, 1).cpu().numpy() / self.queries
        return mean_RS


@torch.no_grad()
def attention_maps(model: TransformerXL, streams: Streams, max_segments: int | None = None) -> AttentionMaps:
    """Average attention over the streams of a split, the memory carried from segment to segment.

    Takes O(N·H·(M + T)) float64 numbers besides one batch.

    Args:
        model: model in evaluation mode, its lengths set.
        streams: streams of one split.
        max_segments: stop after this many segments.

    Raises:
        OptionError: the streams are too short: no query sees L keys.
    """
    config = model.config
    reach = attention_reach(config, streams.segment_len)
    n_segments = min(len(streams), max_segments or len(streams))
    sums = AttentionSums(model, config.mem_len + streams.segment_len + config.ext_len)
    for segment in counted_segments(model, streams, n_segments, reach):
        sums.add(segment)
    allowed = f"must be shorter: no query sees {reach} keys in streams and documents of this length"
    if config.mem_len:
        require(sums.queries > 0, "mem_len", config.mem_len, allowed)
    require(sums.queries > 0, "segment_len", streams.segment_len, allowed)
    by_distance = {}
    for term in sums.terms:
        near_RL = sums.mean(term)[:, :reach]
        by_distance[term] = near_RL / near_RL.sum(axis=1, keepdims=True)
    mean_RS = sums.mean(ALL_TERMS)
    averages = {
        "entropy_bits": sums.mean("entropy")[:, 0] / np.log(2),
        "mean_distance": mean_RS @ np.arange(mean_RS.shape[1]),
        "in_memory": sums.mean("in_memory")[:, 0],
    }
    return AttentionMaps(by_distance, averages, sums.queries)


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
    model: TransformerXL,
    tokens: np.ndarray,
    vocabulary: Vocabulary,
    position: int | None,
    n_targets: int | None,
    segment_len: int,
) -> TextAttention:
    """Return the attention of every head on the memory, from a piece of text.

    The memory is filled with the tokens before the piece, read in segments as everywhere, from as far back as any layer
    can see; the piece is one segment. Without memory, the context is the tokens before the piece in its segment.

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
    config = model.config
    n_targets = number_of_targets(config, n_targets, segment_len)
    n_context = config.mem_len or segment_len - n_targets
    position = place_of_text(config, len(tokens), position, n_targets, n_context)
    start = position - 1  # the first query: the token before the first target
    recorded = inputs_of_text(model, tokens, start, n_targets, n_context, segment_len)
    weights = {}
    for layer, (attention, inputs) in enumerate(recorded, 1):
        weights_HTK = attention.logits(*inputs).softmax(-1)[:, 0]
        weights_HQC = weights_HTK[:, -n_targets:, :n_context].double().cpu().numpy()
        for head, weights_QC in enumerate(weights_HQC, 1):
            weights[f"{layer}:{head}"] = weights_QC
    targets = symbols(vocabulary, tokens[position : position + n_targets])
    context = symbols(vocabulary, tokens[start - n_context : start])
    return TextAttention(position, weights, targets, context)


def number_of_targets(config: TransformerXLConfig, given: int | None, segment_len: int) -> int:
    """Return Q of `text_attention`."""
    longest = segment_len if config.mem_len else segment_len - 1
    n_targets = given
    if n_targets is None:
        usual = longest if config.mem_len else (segment_len + 1) // 2
        n_targets = min(DEFAULT_TARGETS, usual)
    require(1 <= n_targets <= longest, "text_tokens", n_targets, f"must be in 1 … {longest} ({segment_len=})")
    return n_targets


def place_of_text(
    config: TransformerXLConfig, n_tokens: int, position: int | None, n_targets: int, n_context: int
) -> int:
    """Return the position of the first target."""
    first = n_context + 1
    last = n_tokens - n_targets
    allowed = f"must leave room for the memory and {n_targets} tokens in the {n_tokens} tokens of the split"
    require(first <= last, "mem_len", config.mem_len, allowed)
    if position is None:
        return min(max(first, n_tokens // 2), last)
    allowed = f"must be in {first} … {last}, the {n_tokens} tokens of the split minus memory and piece"
    require(first <= position <= last, "text_position", position, allowed)
    return position


def inputs_of_text(
    model: TransformerXL, tokens: np.ndarray, start: int, n_targets: int, n_context: int, segment_len: int
) -> Recorded:
    """Read the text up to the piece in segments, and return the inputs of attention in the piece."""
    config = model.config
    view = model.with_lengths(ext_len=0)
    device = next(model.parameters()).device
    memory: Memory | None = None
    begin = start - n_context
    if config.mem_len:
        farthest = max(0, start - (config.n_layer + 1) * config.mem_len)
        n_odd = (start - farthest) % segment_len
        begin = start
        edges = [*range(farthest + n_odd, start + 1, segment_len)]
        if n_odd:
            edges.insert(0, farthest)
        for first, last in pairwise(edges):
            _, memory = attention_inputs(view, _as_stream(tokens[first:last], device), memory)
    recorded, _ = attention_inputs(view, _as_stream(tokens[begin : start + n_targets], device), memory)
    return recorded


def _as_stream(tokens: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(tokens.astype(np.int64))[None].to(device)


def symbols(vocabulary: Vocabulary, tokens: np.ndarray) -> list[str]:
    """Return the text of every token."""
    return [vocabulary.decode([token]) for token in without_marks(tokens)]
