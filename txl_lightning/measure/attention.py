"""`txl attention`: where the heads of a checkpoint attend, over a split and on a piece of text (Figures 5-7)."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps, font_manager
from matplotlib.colors import LogNorm
from matplotlib.patches import Patch

from txl_lightning.config.lengths import clamp_untrained, evaluation_lengths, extended_context
from txl_lightning.data.corpus import WHOLE
from txl_lightning.data.datamodule import evaluation_streams
from txl_lightning.errors import OptionError, require
from txl_lightning.files import write_json
from txl_lightning.measure.attention_maps import (
    ALL_TERMS,
    Array,
    TextAttention,
    attention_maps,
    most_attended,
    text_attention,
)
from txl_lightning.measure.commands import (
    check_at_least_one,
    log_panels,
    open_checkpoint,
    options_as_typed,
    write_markdown,
)
from txl_lightning.measure.options import AttentionOptions
from txl_lightning.model.transformer_xl import TransformerXL
from txl_lightning.reporting.canvas import new_figure, save_figure
from txl_lightning.reporting.tables import escape, markdown_table
from txl_lightning.runs.trained import checkpoint_corpus, is_other_text

OF_RUN = ("batch_size", "segment_len", "mem_len", "same_length", "clamp_len", "max_segments")
HEADER = ["layer", "head", "entropy (bits)", "mean distance (tokens)", "in the memory (%)"]
MOST_PRINTED = 6
SCORES = {"a": "(a) content", "b": "(b) content and position", "d": "(d) position"}
MOST_COLUMNS = 256
MOST_LETTERS = 14
FONT = "DejaVu Sans Mono"  # part of matplotlib
SIGNS = {" ": "␣", "\n": "↵", "\t": "⇥", "<eos>": "↵"}


@options_as_typed()
def run(options: AttentionOptions, directory: Path) -> list[str]:
    """Average attention over a split; write `attention.json`, `attention.npz`, the table and figures.

    Returns:
        Lines to print: the heads with the largest mean distance, and notes.

    Raises:
        UserError: an option, the checkpoint or the corpus is not usable.
    """
    started = time.perf_counter()
    check_at_least_one(options, "batch_size", "segment_len", "max_segments")
    trained = open_checkpoint(options)
    config, model = trained.config, trained.model
    if not isinstance(model, TransformerXL) or "one-pass windows" in model.cannot:
        allowed = "must be a Transformer-XL whose keys are its tokens"
        raise OptionError("checkpoint", options.checkpoint, f"is {config.model.name}; {allowed}")
    chosen = {name: value for name in OF_RUN if (value := getattr(options, name)) is not None}
    config.evaluation = evaluation = replace(config.evaluation, **chosen)
    lengths = clamp_untrained(evaluation_lengths(config), config)
    model = model.with_lengths(**lengths)
    split = options.split or (WHOLE if is_other_text(options.data_path, [trained]) else "valid")
    corpus = checkpoint_corpus(trained, options.checkpoint, options.data_path, whole=split == WHOLE)
    streams = evaluation_streams(corpus, split, evaluation, extended_context(config))

    # The text first: an error in its options ends the command before the long pass over the split.
    place = (options.text_position, options.text_tokens, evaluation.segment_len)
    text = text_attention(model, corpus.splits[split], corpus.vocabulary, *place)
    N, H = model.config.n_layer, model.config.n_head
    for head in options.heads or ():
        require(head in text.weights, "heads", head, f"must be LAYER:HEAD, layers 1 … {N} and heads 1 … {H}")
    maps = attention_maps(model, streams, options.max_segments if split == WHOLE else evaluation.max_segments)
    averages = {name: of.reshape(N, H).tolist() for name, of in maps.averages.items()}
    results: dict[str, Any] = {
        "checkpoint": str(options.checkpoint),
        "step": trained.step,
        "corpus": {"name": corpus.name, "sha256": corpus.checksum},
        "split": split,
        "evaluation": {**lengths, "segment_len": evaluation.segment_len, "batch_size": evaluation.batch_size},
        "encoding": model.config.encoding,
        "terms": model.config.active_terms,
        "distances": maps.by_distance[ALL_TERMS].shape[1],
        "queries": maps.queries,
        "heads": [
            {"layer": n + 1, "head": h + 1, **{name: of[n][h] for name, of in averages.items()}}
            for n, h in np.ndindex(N, H)
        ],
        "text": {
            "position": text.position,
            "targets": len(text.targets),
            "heads": options.heads or farthest_heads(maps.averages["mean_distance"].reshape(N, H)),
        },
        "seconds": round(time.perf_counter() - started, 2),
    }
    write_json(directory / "attention.json", results, allow_nan=False)
    np.savez_compressed(directory / "attention.npz", **maps.by_distance)  # type: ignore[arg-type]
    return write_report(results, maps.by_distance, text, options, directory)


def farthest_heads(mean_distance_NH: Array) -> list[str]:
    """Return the head with the largest mean distance in the first, the middle and the last layer, as in Figure 6."""
    n_layer = len(mean_distance_NH)
    return [f"{n + 1}:{mean_distance_NH[n].argmax() + 1}" for n in sorted({0, (n_layer - 1) // 2, n_layer - 1})]


def write_report(
    results: dict[str, Any], maps: dict[str, Array], text: TextAttention, options: AttentionOptions, directory: Path
) -> list[str]:
    """Write `attention.md`, and as SVG and PNG `by_distance` (Figure 5), `text` (6) and `terms` (7).

    Args:
        results: contents of `attention.json`.
        maps: contents of `attention.npz`: rows of Figure 5 (`all`) and Figure 7 (a, b, d).
        text: attention of Figure 6.
        options: options of the command; logger `wandb` gets the figures as images, and the table.
        directory: folder for the files.

    Returns:
        Lines to print: the heads with the largest mean distance, and notes.
    """
    heads, n_head = results["heads"], results["heads"][-1]["head"]
    rows, L = [_row(head) for head in heads], results["distances"]
    lengths = ", ".join(f"{name} {value}" for name, value in results["evaluation"].items())
    where = f"{results['corpus']['name']} ({results['split']})"
    averaged = f"average over {results['queries']:,} tokens of {where}"
    note = (
        f"Average over the {results['queries']:,} tokens of {where} that see all {L} relative positions 0 … −{L - 1}; "
        f"0 is the query itself, the last token read ({lengths})."
    )
    write_markdown(directory / "attention.md", (HEADER, rows), "", note)
    titles = {"by_distance": f"Where {len(heads)} heads attend: {averaged}"}
    distance_figure(directory / "by_distance", {"": maps[ALL_TERMS]}, n_head, titles["by_distance"])
    titles["text"] = f"Attention on the memory, from token {text.position:,} of {where} on"
    text_figure(directory / "text", text, results["text"]["heads"], titles["text"])
    if panels := {f"softmax of {title}": maps[term] for term, title in SCORES.items() if term in maps}:
        titles["terms"] = f"Single terms of the score: {averaged}"
        distance_figure(directory / "terms", panels, n_head, titles["terms"])
    known = {"corpus": results["corpus"]}
    log_panels(options, directory, "attention", known, {"heads": (HEADER, rows)}, images=titles)
    farthest = sorted(heads, key=lambda head: -head["mean_distance"])[:MOST_PRINTED]
    shown = markdown_table(HEADER, [_row(head) for head in farthest]).splitlines()
    return [f"Heads with the largest mean distance, {len(farthest)} of {len(heads)}:", *shown, "", escape(note)]


def _row(head: dict[str, Any]) -> list[str]:
    entropy, distance, share = (head[name] for name in ("entropy_bits", "mean_distance", "in_memory"))
    return [f"{head['layer']}", f"{head['head']}", f"{entropy:.2f}", f"{distance:.1f}", f"{100 * share:.1f}"]


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
    columns = [printable(symbol) for symbol in text.context[-MOST_COLUMNS:]]
    rows = [printable(symbol) for symbol in text.targets]
    letters, longest = max(map(len, columns)), max(map(len, rows))
    # Panels with few columns must still be wide enough for their titles.
    width = max(6.5, len(columns) * (0.085 if letters == 1 else 0.115)) + 0.075 * longest + 0.5
    figure = new_figure(width, len(heads) * (0.115 * len(rows) + 0.55 + 0.075 * letters) + 1.8)
    largest = max(float(text.weights[head].max()) for head in heads) or 1.0  # 0: no target sees a token
    least = largest / 1e3
    for axes, head in zip(figure.subplots(len(heads), 1, squeeze=False)[:, 0], heads, strict=True):
        seen, marked = text.weights[head][:, -len(columns) :], most_attended(text.weights[head])[:, -len(columns) :]
        for hidden, colours in ((marked | (seen == 0), "Greys"), (~marked, "Oranges")):
            shaded = np.ma.masked_where(hidden, np.maximum(seen, least))
            image = axes.imshow(
                shaded, norm=LogNorm(least, largest), cmap=colours, aspect="auto", interpolation="nearest"
            )
        axes.set_title("layer {}, head {}".format(*head.split(":")), fontsize=10, loc="left")
        axes.set_xticks(range(len(columns)), columns, rotation=0 if letters == 1 else 90)
        axes.set_yticks(range(len(rows)), rows)
        axes.tick_params(length=0, pad=2)
        for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
            label.set(fontfamily=FONT, fontsize=6.5, parse_math=False)
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
    return word if len(word) <= MOST_LETTERS else word[: MOST_LETTERS - 1] + "…"
