"""`txl attention`: where the heads of a checkpoint attend, over a split and on a piece of text (Figures 5-7).

The model runs as in any evaluation. The inputs of its attention modules are recorded, from which the scores of all
terms and of single terms are computed again. Only sums over queries are kept.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib import colormaps, font_manager
from matplotlib.colors import LogNorm
from matplotlib.patches import Patch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook
from tqdm import tqdm

from txl_lightning.config.architecture import TransformerXLConfig
from txl_lightning.data.corpus import WHOLE
from txl_lightning.data.streams import Streams
from txl_lightning.data.vocabulary import Vocabulary, without_marks
from txl_lightning.errors import require
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
from txl_lightning.files import write_atomically, write_json
from txl_lightning.model.attention import Attention
from txl_lightning.model.encodings import LayerPositions
from txl_lightning.model.memory import Memory
from txl_lightning.model.positions import VisibleKeys
from txl_lightning.model.transformer_xl import TransformerXL
from txl_lightning.reporting.canvas import new_figure, plain_text, save_figure

OF_RUN = ("batch_size", "segment_len", "mem_len", "same_length", "clamp_len", "max_segments")
COLUMNS = {  # printed
    "layer": "{layer}",
    "head": "{head}",
    "entropy (bits)": "{entropy_bits:.2f}",
    "mean distance (tokens)": "{mean_distance:.1f}",
    "in the memory (%)": "{in_memory:.1%}",
}
MOST_PRINTED = 6
# u·k does not depend on the query: the paper shows no softmax of (c) alone.
SCORES = {"a": "(a) content", "b": "(b) content and position", "d": "(d) position"}
MOST_COLUMNS = 256
MOST_LETTERS = 14
FONT = "DejaVu Sans Mono"  # part of matplotlib
SIGNS = {" ": "␣", "\n": "↵", "\t": "⇥"}
ALL_TERMS = "all"
MARKED_SHARE = 0.2  # of the context, for each target
DEFAULT_TARGETS = 24


@options_as_typed()
def run(options: AttentionOptions, directory: Path) -> list[str]:
    """Average attention over a split; write `attention.json`, `attention.npz`, the table and figures.

    Returns:
        Lines to print: the heads with the largest mean distance, and notes.

    Raises:
        UserError: an option, the checkpoint or the corpus is not usable.
    """
    started, trained = time.perf_counter(), open_checkpoint(options)
    fits = isinstance(trained.model, TransformerXL) and "one-pass windows" not in trained.model.cannot
    allowed = f"is {trained.config.model.name}; must be a Transformer-XL whose keys are its tokens"
    require(fits, "checkpoint", options.checkpoint, allowed)
    chosen = {name: value for name in OF_RUN if (value := getattr(options, name)) is not None}
    evaluation = replace(trained.config.evaluation, **chosen)
    carried = Protocol(trained, evaluation, clamped=True, cached=False)
    model, lengths = carried.model(), carried.lengths
    corpus, split = corpus_and_split(trained, options, "valid")

    # The text first: an error in its options ends the command before the long pass over the split.
    place = (options.text_position, options.text_tokens, evaluation.segment_len)
    text = text_attention(model, corpus.splits[split], corpus.vocabulary, *place)
    N, H = model.config.n_layer, model.config.n_head
    for head in options.heads or ():
        require(head in text.weights, "heads", head, f"must be LAYER:HEAD, layers 1 … {N} and heads 1 … {H}")
    most = options.max_segments if split == WHOLE else evaluation.max_segments
    maps = attention_maps(model, carried.streams(corpus, split), most)
    places = [{"layer": n, "head": h} for n, h in product(range(1, N + 1), range(1, H + 1))]
    averages = [dict(zip(maps.averages, of, strict=True)) for of in np.transpose([*maps.averages.values()]).tolist()]
    shown = options.heads or farthest_heads(maps.averages["mean_distance"].reshape(N, H))
    of_corpus = {"name": corpus.name, "sha256": corpus.checksum}
    given = {**lengths.keywords(), "segment_len": lengths.segment, "batch_size": evaluation.batch_size}
    results = {"checkpoint": str(options.checkpoint), "step": trained.step, "corpus": of_corpus, "split": split}
    results |= {"evaluation": given, "encoding": model.config.encoding, "terms": model.config.active_terms}
    results |= {"distances": maps.by_distance[ALL_TERMS].shape[1], "queries": maps.queries}
    results["heads"] = [place | of for place, of in zip(places, averages, strict=True)]
    results["text"] = {"position": text.position, "targets": len(text.targets), "heads": shown}
    results["seconds"] = round(time.perf_counter() - started, 2)
    arrays: Any = maps.by_distance
    write_atomically(directory / "attention.npz", lambda path: np.savez_compressed(path, **arrays))
    write_json(directory / "attention.json", results, allow_nan=False)
    lines = write_report(results, maps.by_distance, text, directory)
    log_results("attention", results, options, directory)
    return lines


def farthest_heads(mean_distance_NH: Array) -> list[str]:
    """Return the head with the largest mean distance in the first, the middle and the last layer, as in Figure 6."""
    n_layer = len(mean_distance_NH)
    return [f"{n + 1}:{mean_distance_NH[n].argmax() + 1}" for n in sorted({0, (n_layer - 1) // 2, n_layer - 1})]


def write_report(results: dict[str, Any], maps: dict[str, Array], text: TextAttention, directory: Path) -> list[str]:
    """Write as SVG and PNG `by_distance` (Figure 5), `text` (6) and `terms` (7).

    Args:
        results: contents of `attention.json`.
        maps: contents of `attention.npz`: rows of Figure 5 (`all`) and Figure 7 (a, b, d).
        text: attention of Figure 6.
        directory: folder for the files.

    Returns:
        Lines to print: the heads with the largest mean distance, and notes.
    """
    heads, n_head, queries = results["heads"], results["heads"][-1]["head"], f"{results['queries']:,} tokens"
    last, where = results["distances"] - 1, f"{results['corpus']['name']} ({results['split']})"
    averaged = f"average over {queries} of {where}"
    title = f"Where {len(heads)} heads attend: {averaged}"
    distance_figure(directory / "by_distance", {"": maps[ALL_TERMS]}, n_head, title)
    title = f"Attention on the memory, from token {text.position:,} of {where} on"
    text_figure(directory / "text", text, results["text"]["heads"], title)
    if panels := {f"softmax of {term}": maps[letter] for letter, term in SCORES.items() if letter in maps}:
        distance_figure(directory / "terms", panels, n_head, f"Single terms of the score: {averaged}")
    farthest = sorted(heads, key=lambda head: -head["mean_distance"])[:MOST_PRINTED]
    rows = [{title: shown.format(**head).rstrip("%") for title, shown in COLUMNS.items()} for head in farthest]
    title = f"Heads with the largest mean distance, {len(farthest)} of {len(heads)}:"
    note = (
        f"Average over the {queries} of {where} that see all {last + 1} relative positions 0 … −{last}; 0 is the query "
        f"itself, the last token read ({describe(results['evaluation'])})."
    )
    return write_markdown(None, title, rows, "", note)


def distance_figure(stem: Path, panels: Mapping[str, Array], n_head: int, title: str) -> None:
    """Draw Figure 5, or Figure 7 with a panel for each term, as SVG and PNG: rows are heads, columns positions.

    Panels stand one below the other, so that their letters can be read at the width of a phone.

    Args:
        stem: path of the files without suffix.
        panels: by name, [R, L]: mean attention of R = N·H heads on the distances 0, …, L - 1.
        n_head: H; a line separates the layers.
        title: title of the figure.
    """
    R, L = next(iter(panels.values())).shape
    layers = range(R // n_head)
    figure = new_figure(5.6, min(18.0, max(3.4, 1.2 + len(panels) * (0.5 + 0.1 * R))))
    all_axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    least = 0.1 / L  # a tenth of uniform attention
    norm = LogNorm(least, max(float(panel.max()) for panel in panels.values()))
    for axes, (name, rows) in zip(all_axes, panels.items(), strict=True):
        # The oldest token is on the left, the query itself on the right, in reading order.
        extent = (-L + 0.5, 0.5, R - 0.5, -0.5)
        shown = np.maximum(rows[:, ::-1], least)
        image = axes.imshow(shown, norm=norm, aspect="auto", interpolation="nearest", extent=extent)
        axes.set_title(name, fontsize=10)
        axes.set_yticks([(n + 0.5) * n_head - 0.5 for n in layers], [f"layer {n + 1}" for n in layers])
        axes.set_ylabel(f"heads 1 … {n_head} of each layer", fontsize=9)
        for n in layers[1:]:
            axes.axhline(n * n_head - 0.5, color="white", linewidth=1.2)
    all_axes[-1].set_xlabel("relative position j − i (tokens)")
    bar = figure.colorbar(image, ax=list(all_axes), pad=0.02, extend="min", location="bottom", aspect=40)
    bar.set_label(f"mean attention (share of 1); white line: evenly spread, 1/{L}", fontsize=9)
    bar.ax.axvline(1 / L, color="white", linewidth=1.6)
    figure.suptitle(textwrap.fill(title, 56), fontsize=11)
    save_figure(figure, stem)


def text_figure(stem: Path, text: TextAttention, heads: list[str], title: str) -> None:
    """Draw Figure 6, a panel for each head, as SVG and PNG: rows are targets, columns tokens of the memory.

    The tokens that a target attends to most (`most_attended`) are orange. Only the nearest 256 tokens of a longer
    context are drawn.

    Args:
        stem: path of the files without suffix.
        text: attention on the tokens before the piece; 0 where a target does not see a token.
        heads: heads to draw, as `LAYER:HEAD`.
        title: title of the figure.
    """
    columns, rows = ([*map(printable, of)] for of in (text.context[-MOST_COLUMNS:], text.targets))
    letters = max(map(len, columns))
    # Panels with few columns must still be wide enough for their titles.
    width = max(6.5, len(columns) * (0.085 if letters == 1 else 0.115)) + 0.075 * max(map(len, rows)) + 0.5
    figure = new_figure(width, len(heads) * (0.115 * len(rows) + 0.55 + 0.075 * letters) + 1.8)
    largest = max(float(text.weights[head].max()) for head in heads) or 1.0  # 0: no target sees a token
    drawn: dict[str, Any] = {"norm": LogNorm(largest / 1e3, largest), "aspect": "auto", "interpolation": "nearest"}
    for axes, head in zip(figure.subplots(len(heads), 1, squeeze=False)[:, 0], heads, strict=True):
        seen, marked = text.weights[head][:, -len(columns) :], most_attended(text.weights[head])[:, -len(columns) :]
        for hidden, colours in ((marked | (seen == 0), "Greys"), (~marked, "Oranges")):
            image = axes.imshow(np.ma.masked_where(hidden, np.maximum(seen, largest / 1e3)), cmap=colours, **drawn)
        axes.set_title("layer {}, head {}".format(*head.split(":")), fontsize=10, loc="left")
        axes.set_xticks(range(len(columns)), columns, rotation=0 if letters == 1 else 90)
        axes.set_yticks(range(len(rows)), rows)
        axes.tick_params(length=0, pad=2, labelsize=6.5, labelfontfamily=FONT)
        axes.set_ylabel("target (token to predict)", fontsize=9)
    axes.set_xlabel("token of the memory, oldest on the left")
    bar = figure.colorbar(image, ax=figure.axes, pad=0.01, aspect=60, extend="min", location="bottom")
    bar.set_label("attention (share of 1); others in the same shade of grey", fontsize=9)
    meaning = Patch(color=colormaps["Oranges"](0.7), label="the 20 % of the memory that the target attends to most")
    figure.legend(handles=[meaning], loc="outside lower center", frameon=False, fontsize=9)
    figure.suptitle(title, fontsize=11, parse_math=False)
    save_figure(figure, stem)


def printable(symbol: str) -> str:
    """Return a token in glyphs of the font: signs for white space, escapes for what has no glyph, long words cut."""
    if symbol in SIGNS:
        return SIGNS[symbol]
    has_glyph = font_manager.get_font(font_manager.findfont(FONT)).get_char_index
    word = "".join(SIGNS.get(c) or (c if c.isprintable() and has_glyph(ord(c)) else ascii(c)[1:-1]) for c in symbol)
    return plain_text(word if len(word) <= MOST_LETTERS else word[: MOST_LETTERS - 1] + "…")


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

    def record(module: Any, inputs: tuple[Any, ...]) -> None:
        if isinstance(module, Attention):
            found.append((module, AttentionInputs(*inputs)))

    with register_module_forward_pre_hook(record):
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
    reach, n_segments = attention_reach(config, streams.segment_len), min(len(streams), max_segments or len(streams))
    names = [ALL_TERMS, *(term for term in SCORES if term in config.active_terms)]
    sizes = dict.fromkeys(names, config.mem_len + streams.segment_len + config.ext_len) | {"entropy": 1, "in_memory": 1}
    options: dict[str, Any] = {"dtype": torch.float64, "device": device}
    sums_NHS = {name: torch.zeros(config.n_layer, config.n_head, size, **options) for name, size in sizes.items()}
    memory, n_read, queries = None, 0, 0
    for index in tqdm(range(n_segments), desc="attention", unit="segment", disable=None, leave=False):
        tokens_BT, n_targets = streams[index].tokens.to(device), streams[index].targets.shape[1]
        B, T = tokens_BT.shape
        recorded, memory = attention_inputs(model, tokens_BT, memory)
        # Query i sees the filled memory and i + 1 tokens of its segment; extended context has no targets.
        first = max(T - n_targets, reach - 1 - min(n_read, config.mem_len))
        n_read += max(0, T - config.ext_len)
        counts_BT = ((recorded[0][1].visible.mask_TK == 0).sum(dim=-1) >= reach).expand(B, -1).clone()
        counts_BT[:, :first] = False
        queries += int(counts_BT.sum())
        for (n, (attention, inputs)), name in product(enumerate(recorded), names):
            n_memory = inputs.memory_BMD.shape[1]
            logits_HBTK = attention.logits(*inputs, terms=None if name == ALL_TERMS else name)
            weights_HBTK = logits_HBTK.softmax(-1) * counts_BT[:, :, None]
            weights_HTK = weights_HBTK.sum(dim=1, dtype=torch.float64)
            of_distance_HS = with_distances(weights_HTK, n_memory).sum(dim=1)
            sums_NHS[name][n, :, : of_distance_HS.shape[1]] += of_distance_HS
            if name == ALL_TERMS:
                sums_NHS["entropy"][n, :, 0] += torch.special.entr(weights_HBTK).sum(dim=(1, 2, 3), dtype=torch.float64)
                sums_NHS["in_memory"][n, :, 0] += weights_HTK[:, :, :n_memory].sum(dim=(1, 2))
    length = config.mem_len or streams.segment_len
    allowed = f"must be shorter: no query sees {reach} keys in streams and documents of this length"
    require(queries > 0, "mem_len" if config.mem_len else "segment_len", length, allowed)
    means = {name: of.flatten(0, 1).cpu().numpy() / queries for name, of in sums_NHS.items()}
    averages = {
        "entropy_bits": means.pop("entropy")[:, 0] / np.log(2),
        "mean_distance": means[ALL_TERMS] @ np.arange(means[ALL_TERMS].shape[1]),
        "in_memory": means.pop("in_memory")[:, 0],
    }
    by_distance = {name: rows[:, :reach] / rows[:, :reach].sum(axis=1, keepdims=True) for name, rows in means.items()}
    return AttentionMaps(by_distance, averages, queries)


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
    view, bounds = model.with_lengths(ext_len=0), [start + n_targets, start - n_context]
    if config.mem_len:
        farthest = max(0, start - (config.n_layer + 1) * config.mem_len)
        bounds = [start + n_targets, *range(start, farthest, -segment_len), farthest]
    memory: Memory | None = None
    for begin, end in pairwise(bounds[::-1]):
        segment_1T = torch.from_numpy(tokens[begin:end].astype(np.int64))[None].to(device)
        recorded, memory = attention_inputs(view, segment_1T, memory)  # those of the piece remain
    weights: dict[str, Array] = {}
    for n, (attention, inputs) in enumerate(recorded, 1):
        of_piece_HQC = attention.logits(*inputs).softmax(-1)[:, 0, -n_targets:, :n_context].double().cpu().numpy()
        weights |= {f"{n}:{h}": weights_QC for h, weights_QC in enumerate(of_piece_HQC, 1)}
    bounds_of = ((position, position + n_targets), (start - n_context, start))
    texts = ([vocabulary.decode([token]) for token in without_marks(tokens[slice(*ends)])] for ends in bounds_of)
    return TextAttention(position, weights, *texts)


def most_attended(weights_QC: Array) -> NDArray[np.bool_]:
    """Mark the fifth of the C tokens with the most attention in every row; of equal ones, the later."""
    n_marked = max(1, round(MARKED_SHARE * weights_QC.shape[1]))
    marked = np.zeros(weights_QC.shape, dtype=bool)
    np.put_along_axis(marked, np.argsort(weights_QC, axis=1, kind="stable")[:, -n_marked:], True, axis=1)
    return marked & (weights_QC > 0)
