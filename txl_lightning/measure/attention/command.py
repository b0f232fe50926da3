"""`txl attention`: where the heads of a checkpoint attend, over a split and on a piece of text (Figures 5-7)."""

from __future__ import annotations

import csv
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps, font_manager
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from txl_lightning.config.lengths import clamp_untrained, evaluation_lengths, extended_context
from txl_lightning.config.schemas import Config, plain
from txl_lightning.data.corpus import WHOLE
from txl_lightning.data.datamodule import evaluation_streams
from txl_lightning.errors import OptionError, require
from txl_lightning.files import write_json, write_text
from txl_lightning.measure.attention import AttentionOptions
from txl_lightning.measure.attention.maps import (
    ALL_TERMS,
    CENTRED,
    SINGLE_TERMS,
    Array,
    TextAttention,
    attention_maps,
    most_attended,
    text_attention,
)
from txl_lightning.measure.scoring.option_checks import check_at_least_one, open_checkpoint, options_as_typed
from txl_lightning.model.transformer_xl import TransformerXL
from txl_lightning.reporting.canvas import new_figure, save_figure
from txl_lightning.reporting.tables import escape, markdown_table
from txl_lightning.runs.trained import checkpoint_corpus, is_other_text

OF_RUN = ("batch_size", "segment_len", "mem_len", "same_length", "clamp_len", "max_segments")
COLUMNS = {
    "layer": "{layer}",
    "head": "{head}",
    "entropy (bits)": "{entropy_bits:.2f}",
    "mean distance (tokens)": "{mean_distance:.1f}",
    "in the segment (%)": "{in_segment:.1%}",
    "in the memory (%)": "{in_memory:.1%}",
}
MOST_PRINTED = 3
SCORES = {"a": "(a) content", "b": "(b) content and position", "c": "(c) forgetting", "d": "(d) position"}
MOST_LABELLED_HEADS = 48
LEAST_HEIGHT, MOST_HEIGHT = 3.4, 18.0  # inches
MOST_COLUMNS = 256
MOST_LETTERS = 14
FONT = "DejaVu Sans Mono"  # part of matplotlib
SIGNS = {" ": "␣", "\n": "↵", "\t": "⇥", "<eos>": "↵"}
# Neither end of a map is white or black: every drawn cell differs from the background.
GREYS = ListedColormap(colormaps["Greys"](np.linspace(0.05, 0.6, 256)))
ORANGES = ListedColormap(colormaps["Oranges"](np.linspace(0.45, 1.0, 256)))
UNSEEN = "#CFE3F5"


@options_as_typed()
def run(options: AttentionOptions, directory: Path) -> list[str]:
    """Average attention over a split; write `attention.json`, `attention.npz`, tables and figures.

    Returns:
        Lines to print: the heads with the largest and the smallest mean distance, and notes.

    Raises:
        UserError: an option, the checkpoint or the corpus is not usable.
    """
    started = time.perf_counter()
    check_at_least_one(options, "batch_size", "segment_len", "max_segments")
    trained = open_checkpoint(options)
    config, model = trained.config, trained.model
    others = ("compression", "n_tokens")
    if not isinstance(model, TransformerXL) or any(getattr(model.config, name) for name in others):
        no_others = "without compressed memory or memory tokens"
        allowed = f"is {config.model.name}; must be a Transformer-XL {no_others}"
        raise OptionError("checkpoint", options.checkpoint, allowed)
    lengths = _set_lengths(options, config)
    model = model.with_lengths(**lengths)
    split = options.split or (WHOLE if is_other_text(options.data_path, [trained]) else "valid")
    corpus = checkpoint_corpus(trained, options.checkpoint, options.data_path, whole=split == WHOLE)
    evaluation = config.evaluation
    streams = evaluation_streams(corpus, split, evaluation, extended_context(config))

    # The text first: an error in its options ends the command before the long pass over the split.
    place = (options.text_position, options.text_tokens, evaluation.segment_len)
    text = text_attention(model, corpus.splits[split], corpus.vocabulary, *place)
    for head in options.heads or ():
        allowed = f"must be LAYER:HEAD, layers 1 … {model.config.n_layer} and heads 1 … {model.config.n_head}"
        require(head in text.weights, "heads", head, allowed)
    maps = attention_maps(model, streams, options.max_segments if split == WHOLE else evaluation.max_segments)
    sizes = {"segment_len": evaluation.segment_len, "batch_size": evaluation.batch_size}
    terms, (n_rows, reach), H = model.config.logit_terms, maps.by_distance[ALL_TERMS].shape, model.config.n_head
    heads = [
        {"layer": row // H + 1, "head": row % H + 1, **{name: float(of[row]) for name, of in maps.averages.items()}}
        for row in range(n_rows)
    ]
    farthest = farthest_heads(maps.averages["mean_distance"].reshape(-1, H))
    results: dict[str, Any] = {
        "checkpoint": str(options.checkpoint),
        "step": trained.step,
        "corpus": {"name": corpus.name, "sha256": corpus.checksum},
        "split": split,
        "evaluation": {**lengths, **sizes},
        "encoding": model.config.encoding,
        "terms": terms,
        "missing_terms": [term for term in SINGLE_TERMS if term not in terms],
        "distances": reach,
        "queries": maps.queries,
        "heads": heads,
        "text": {"position": text.position, "targets": len(text.targets), "heads": options.heads or farthest},
        "seconds": round(time.perf_counter() - started, 2),
    }
    write_json(directory / "attention.json", results, allow_nan=False)
    np.savez_compressed(directory / "attention.npz", **maps.by_distance)  # type: ignore[arg-type]
    return write_report(results, maps.by_distance, text, options, directory)


def farthest_heads(mean_distance_NH: Array) -> list[str]:
    """Return the head with the largest mean distance in the first, the middle and the last layer, as in Figure 6."""
    n_layer = len(mean_distance_NH)
    return [f"{n + 1}:{mean_distance_NH[n].argmax() + 1}" for n in sorted({0, (n_layer - 1) // 2, n_layer - 1})]


def _set_lengths(options: AttentionOptions, config: Config) -> dict[str, Any]:
    """Set the given lengths in `config.evaluation` and return the lengths of the model."""
    given = {name: getattr(options, name) for name in OF_RUN}
    chosen = {name: value for name, value in given.items() if value is not None}
    config.evaluation = replace(config.evaluation, **chosen)
    return clamp_untrained(evaluation_lengths(config), config)


def write_report(
    results: dict[str, Any], maps: dict[str, Array], text: TextAttention, options: AttentionOptions, directory: Path
) -> list[str]:
    """Write `attention.md`, `heads.csv`, and as SVG and PNG `by_distance` (Figure 5), `text` (6), `terms` (7)
    and `terms_centred`.

    Args:
        results: contents of `attention.json`.
        maps: contents of `attention.npz`: rows of Figure 5 (`all`) and Figure 7 (a, b, d, with a forget gate c;
            centred a_centred, …).
        text: attention of Figure 6.
        options: options of the command; logger `wandb` gets the figures as images, and the table.
        directory: folder for the files.

    Returns:
        Lines to print: the heads with the largest and the smallest mean distance, and notes.
    """
    heads, header = results["heads"], list(_cells(results["heads"][0]))
    with (directory / "heads.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(heads[0]))
        writer.writeheader()
        writer.writerows(heads)
    rows, notes = [list(_cells(head).values()) for head in heads], list(map(escape, _notes(results)))
    write_text(directory / "attention.md", "\n".join([markdown_table(header, rows), *notes]) + "\n")

    figures = _draw(results, maps, text, directory)
    if options.logger.name == "wandb":
        from txl_lightning.reporting.wandb_panels import log_image, log_table, wandb_run

        known = {**plain(options), "corpus": results["corpus"]}
        with wandb_run(directory, options.logger, "attention", known) as run:
            log_table(run, "attention/heads", header, rows)
            for name, caption in figures.items():
                log_image(run, f"attention/{name}", directory / f"{name}.png", caption)
    title = []
    if len(heads) > 2 * MOST_PRINTED:
        title = [f"The {MOST_PRINTED} heads with the largest and the smallest mean distance, of {len(heads)}:"]
        ranked = sorted(heads, key=lambda head: -head["mean_distance"])
        rows = [list(_cells(head).values()) for head in (*ranked[:MOST_PRINTED], *ranked[-MOST_PRINTED:])]
    return [*title, *markdown_table(header, rows).splitlines(), "", *notes]


def _cells(head: dict[str, Any]) -> dict[str, str]:
    """Return the cells of a head by column."""
    return {name: cell.format(**head).removesuffix("%") for name, cell in COLUMNS.items()}


def _draw(results: dict[str, Any], maps: dict[str, Array], text: TextAttention, directory: Path) -> dict[str, str]:
    """Draw the figures and return their titles by name."""
    n_head = results["heads"][-1]["head"]
    where = f"{results['corpus']['name']} ({results['split']})"
    averaged = f"average over {results['queries']:,} tokens of {where}"
    titles = {"by_distance": f"Where {len(results['heads'])} heads attend: {averaged}"}
    distance_figure(directory / "by_distance", {"": maps[ALL_TERMS]}, n_head, titles["by_distance"])
    titles["text"] = f"Attention on the memory, from token {text.position:,} of {where} on"
    weights = {"layer {}, head {}".format(*head.split(":")): text.weights[head] for head in results["text"]["heads"]}
    text_figure(directory / "text", weights, text.targets, text.context, titles["text"])
    for stem, suffix, split in (("terms", "", ""), ("terms_centred", CENTRED, ", mean query moved into u and v")):
        panels = {f"softmax of {title}": maps[term + suffix] for term, title in SCORES.items() if term + suffix in maps}
        if panels:
            titles[stem] = f"Single terms of the score{split}: {averaged}"
            distance_figure(directory / stem, panels, n_head, titles[stem])
    return titles


def _notes(results: dict[str, Any]) -> list[str]:
    """Describe the averages, and the terms that the model lacks."""
    L, lengths = results["distances"], ", ".join(f"{name} {value}" for name, value in results["evaluation"].items())
    lines = [
        f"Average over the {results['queries']:,} tokens of {results['corpus']['name']} ({results['split']}) that see "
        f"all {L} relative positions 0 … −{L - 1}; 0 is the query itself, the last token read ({lengths})."
    ]
    beyond = max(head["beyond"] for head in results["heads"])
    if beyond > 0:
        left_out = f"Figure 5 leaves out farther tokens, at most {beyond:.1%} of a head's attention"
        lines.append(f"{left_out}; entropy, distance and shares include them.")
    given = f"encoding={results['encoding']}, terms={results['terms']!r}"
    return lines + [f"Figure 7: the model has no term ({term}) ({given})." for term in results["missing_terms"]]


def distance_figure(stem: Path, panels: Mapping[str, Array], n_head: int, title: str) -> None:
    """Draw Figure 5, or Figure 7 with a panel for each term, as SVG and PNG: rows are heads, columns positions.

    Panels stand one below the other, so that their letters can be read at the width of a phone.

    Args:
        stem: path of the files without suffix.
        panels: by name, [R, L]: mean attention of R = N·H heads on the distances 0, …, L - 1.
        n_head: H; a line separates the layers.
        title: title of the figure.
    """
    n_rows, n_distances = next(iter(panels.values())).shape
    n_layer = n_rows // n_head
    few = n_rows <= MOST_LABELLED_HEADS
    height = 1.2 + len(panels) * (0.5 + (0.145 if few else 0.065) * n_rows)
    figure = new_figure(5.6, min(MOST_HEIGHT, max(LEAST_HEIGHT, height)))
    all_axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    largest = max(float(panel.max()) for panel in panels.values())
    least = 0.1 / n_distances
    norm = LogNorm(least, largest)  # from a tenth of uniform attention
    layers = {(n + 0.5) * n_head - 0.5: f"layer {n + 1}" for n in range(n_layer)}  # names by their centre
    for axes, (name, rows) in zip(all_axes, panels.items(), strict=True):
        # The oldest token is on the left, the query itself on the right, in reading order.
        extent = (-n_distances + 0.5, 0.5, n_rows - 0.5, -0.5)
        shown = np.maximum(rows[:, ::-1], least)
        image = axes.imshow(shown, norm=norm, aspect="auto", interpolation="nearest", extent=extent)
        axes.set_title(name, fontsize=10)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}".replace("-", "−")))
        for n in range(1, n_layer):
            axes.axhline(n * n_head - 0.5, color="white", linewidth=1.2)
        if few:
            axes.set_yticks(range(n_rows), [str(row % n_head + 1) for row in range(n_rows)], minor=True)
        axes.set_yticks(list(layers), list(layers.values()))
        axes.set_ylabel(f"heads 1 … {n_head} of each layer", fontsize=9)
        axes.tick_params(axis="y", which="major", length=0, pad=16 if few else 3, labelsize=8.5)
        axes.tick_params(axis="y", which="minor", length=1.5, pad=2, labelsize=6.5)
    all_axes[-1].set_xlabel("relative position j − i (tokens)")
    bar = figure.colorbar(image, ax=list(all_axes), pad=0.02, extend="min", location="bottom", aspect=40)
    bar.set_label(f"mean attention (share of 1); white line: evenly spread, 1/{n_distances}", fontsize=9)
    bar.ax.axvline(1 / n_distances, color="white", linewidth=1.6)
    figure.suptitle(textwrap.fill(title, 56), fontsize=11)
    save_figure(figure, stem)


def text_figure(
    stem: Path, weights: Mapping[str, Array], targets: Sequence[str], context: Sequence[str], title: str
) -> None:
    """Draw Figure 6, a panel for each head, as SVG and PNG: rows are targets, columns tokens of the memory.

    The tokens that a target attends to most (`most_attended`) are orange. Only the nearest 256 tokens of a longer
    context are drawn.

    Args:
        stem: path of the files without suffix.
        weights: attention by name of the head, [Q, C]; 0 where a target does not see a token.
        targets: Q symbols.
        context: C symbols, the oldest first.
        title: title of the figure.
    """
    columns = [printable(symbol) for symbol in context[-MOST_COLUMNS:]]
    rows = [printable(symbol) for symbol in targets]
    letters, longest = max(map(len, columns)), max(map(len, rows))
    # Panels with few columns must still be wide enough for their titles.
    width = max(6.5, len(columns) * (0.085 if letters == 1 else 0.115)) + 0.075 * longest + 0.5
    height = len(weights) * (0.115 * len(rows) + 0.55 + 0.075 * letters) + 2.4
    figure = new_figure(width, height)
    all_axes = figure.subplots(len(weights), 1, squeeze=False)[:, 0]
    largest = max(float(of_head.max()) for of_head in weights.values()) or 1.0  # 0: no target sees a token
    least = largest / 1e3
    norm = LogNorm(least, largest)
    images: list[Any] = []
    for axes, (name, of_head) in zip(all_axes, weights.items(), strict=True):
        is_marked = most_attended(of_head)[:, -len(columns) :]
        seen = np.ma.masked_equal(of_head[:, -len(columns) :], 0)
        for hidden, colours in ((is_marked, GREYS), (~is_marked, ORANGES)):
            shaded = np.ma.masked_where(hidden, np.ma.maximum(seen, least))
            images.append(axes.imshow(shaded, norm=norm, cmap=colours, aspect="auto", interpolation="nearest"))
        axes.set_facecolor(UNSEEN)
        axes.set_title(name, fontsize=10, loc="left")
        axes.set_xticks(range(len(columns)), columns, rotation=0 if letters == 1 else 90)
        axes.set_yticks(range(len(rows)), rows)
        axes.tick_params(length=0, pad=2)
        for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
            label.set(fontfamily=FONT, fontsize=6.5, parse_math=False)
        axes.set_ylabel("target (token to predict)", fontsize=9)
    all_axes[-1].set_xlabel("token of the memory, oldest on the left")
    for image, label in ((images[1], "attention of the marked"), (images[0], "attention of the others")):
        bar = figure.colorbar(image, ax=list(all_axes), pad=0.01, aspect=60, extend="min", location="bottom")
        bar.set_label(f"{label} (share of 1)", fontsize=9)
    meanings = [Patch(color=ORANGES(0.5), label="the 20 % of the memory that the target attends to most")]
    if any((of_head == 0).any() for of_head in weights.values()):
        meanings.append(Patch(color=UNSEEN, label="farther than the target sees"))
    figure.legend(handles=meanings, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    figure.suptitle(title, fontsize=11, parse_math=False)
    save_figure(figure, stem)


def printable(symbol: str) -> str:
    """Return a token in glyphs of the font: signs for white space, escapes for what has no glyph, long words cut."""
    if symbol in SIGNS:
        return SIGNS[symbol]
    font = font_manager.get_font(font_manager.findfont(FONT))
    has_glyph = font.get_char_index
    word = "".join(SIGNS.get(c) or (c if c.isprintable() and has_glyph(ord(c)) else ascii(c)[1:-1]) for c in symbol)
    return word if len(word) <= MOST_LETTERS else word[: MOST_LETTERS - 1] + "…"
