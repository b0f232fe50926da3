"""Report of `txl attention`: Figures 5, 6 and 7 and a table of all heads, in files and in Weights & Biases."""

from __future__ import annotations

import csv
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps, font_manager
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from txl_lightning.config.schemas import LoggerConfig
from txl_lightning.evaluation.attention.maps import ALL_TERMS, Array, TextAttention
from txl_lightning.files import write_text
from txl_lightning.reporting.canvas import new_figure, save_figure
from txl_lightning.reporting.tables import markdown_table

HEADER = ["layer", "head", "entropy (bits)", "mean distance (tokens)", "in the segment (%)", "in the memory (%)"]
MOST_PRINTED = 3
SCORES = {"a": "(a) content", "b": "(b) content and position", "d": "(d) position"}
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


def write_report(
    results: dict[str, Any],
    by_distance: dict[str, Array],
    text: TextAttention,
    directory: Path,
    logger: LoggerConfig,
    config: dict[str, Any] | None = None,
) -> list[str]:
    """Write `attention.md`, `heads.csv`, and as SVG and PNG `by_distance` (Figure 5), `text` (6), `terms` (7).

    Args:
        results: contents of `attention.json`.
        by_distance: contents of `attention.npz`: rows of Figure 5 (`all`) and Figure 7 (a, b, d).
        text: attention of Figure 6.
        directory: folder for the files.
        logger: logger options; `wandb` gets the figures as images, and the table.
        config: configuration to show beside the W&B run.

    Returns:
        Lines to print: the heads with the largest and the smallest mean distance, and notes.
    """
    heads = results["heads"]
    rows = [_cells(head) for head in heads]
    explained = _notes(results)
    with (directory / "heads.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(heads[0]))
        writer.writeheader()
        writer.writerows(heads)
    write_text(directory / "attention.md", "\n".join([markdown_table(HEADER, rows), *explained]) + "\n")

    figures = _draw(results, by_distance, text, directory)
    if logger.name == "wandb":
        from txl_lightning.reporting.wandb_panels import log_image, log_table, wandb_run

        with wandb_run(directory, logger, "attention", {**(config or {}), "corpus": results["corpus"]}) as run:
            log_table(run, "attention/heads", HEADER, rows)
            for name, caption in figures.items():
                log_image(run, f"attention/{name}", directory / f"{name}.png", caption)
    ranked = sorted(heads, key=lambda head: head["mean_distance"])
    farthest, nearest = ranked[: -MOST_PRINTED - 1 : -1], ranked[:MOST_PRINTED]
    few = heads if len(heads) <= 2 * MOST_PRINTED else [*farthest, *reversed(nearest)]
    title = f"The {MOST_PRINTED} heads with the largest and the smallest mean distance, of {len(heads)}:"
    table = markdown_table(HEADER, [_cells(head) for head in few]).splitlines()
    return [*([] if few is heads else [title]), *table, "", *explained]


def _draw(
    results: dict[str, Any], by_distance: dict[str, Array], text: TextAttention, directory: Path
) -> dict[str, str]:
    """Draw the figures and return their titles by name."""
    n_head = results["heads"][-1]["head"]
    where = f"{results['corpus']['name']} ({results['split']})"
    averaged = f"average over {results['queries']:,} tokens of {where}"
    titles = {"by_distance": f"Where {len(results['heads'])} heads attend: {averaged}"}
    distance_figure(directory / "by_distance", {"": by_distance[ALL_TERMS]}, n_head, titles["by_distance"])
    titles["text"] = f"Attention on the memory, from token {text.position:,} of {where} on"
    names = {(n, h): f"layer {n + 1}, head {h + 1}" for n, h in text.weights}
    weights = {names[head]: of_head for head, of_head in text.weights.items()}
    marked = {names[head]: of_head for head, of_head in text.marked.items()}
    text_figure(directory / "text", weights, marked, text.targets, text.context, titles["text"])
    terms = {f"softmax of {SCORES[term]}": rows for term, rows in by_distance.items() if term != ALL_TERMS}
    if terms:
        titles["terms"] = f"Single terms of the score: {averaged}"
        distance_figure(directory / "terms", terms, n_head, titles["terms"])
    return titles


def _cells(head: dict[str, Any]) -> list[str]:
    shares = [f"{100 * head[name]:.1f}" for name in ("in_segment", "in_memory")]
    return [
        str(head["layer"]),
        str(head["head"]),
        f"{head['entropy_bits']:.2f}",
        f"{head['mean_distance']:.1f}",
        *shares,
    ]


def _notes(results: dict[str, Any]) -> list[str]:
    """Describe the averages, and the terms that the model lacks."""
    lengths, L = results["evaluation"], results["distances"]
    lines = [
        f"Average over the {results['queries']:,} tokens of {results['corpus']['name']} ({results['split']}) that see "
        f"all {L} relative positions 0 … −{L - 1}; 0 is the query itself, the last token read. Memory "
        f"{lengths['mem_len']}, segments of {lengths['segment_len']}, {lengths['batch_size']} streams.",
    ]
    beyond = max(head["beyond"] for head in results["heads"])
    if beyond > 0:
        kind = "same_length=true gives every token the same number" if lengths["mem_len"] else "the other half segment"
        lines.append(
            f"Figure 5 leaves out farther tokens, at most {beyond:.1%} of a head's attention ({kind}); "
            "entropy, distance and shares include them."
        )
    for term in results["missing_terms"]:
        lines.append(
            f"Figure 7: the model has no term ({term}) (encoding={results['encoding']}, terms={results['terms']!r})."
        )
    return lines


def distance_figure(stem: Path, panels: Mapping[str, NDArray[np.float64]], n_head: int, title: str) -> None:
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
    row_height = 0.145 if n_rows <= MOST_LABELLED_HEADS else 0.065
    height = min(MOST_HEIGHT, 1.2 + len(panels) * (0.5 + row_height * n_rows))
    figure = new_figure(5.6, max(LEAST_HEIGHT, height))
    all_axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    largest = max(float(panel.max()) for panel in panels.values())
    least = 0.1 / n_distances
    norm = LogNorm(least, largest)  # from a tenth of uniform attention
    for axes, (name, rows) in zip(all_axes, panels.items(), strict=True):
        # The oldest token is on the left, the query itself on the right, in reading order.
        image = axes.imshow(
            np.maximum(rows[:, ::-1], least),
            norm=norm,
            cmap="viridis",
            aspect="auto",
            interpolation="nearest",
            extent=(-n_distances + 0.5, 0.5, n_rows - 0.5, -0.5),
        )
        axes.set_title(name, fontsize=10)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}".replace("-", "−")))
        for n in range(1, n_layer):
            axes.axhline(n * n_head - 0.5, color="white", linewidth=1.2)
        _label_heads(axes, n_layer, n_head)
    all_axes[-1].set_xlabel("relative position j − i (tokens)")
    bar = figure.colorbar(image, ax=list(all_axes), pad=0.02, extend="min", location="bottom", aspect=40)
    bar.set_label(f"mean attention (share of 1); white line: evenly spread, 1/{n_distances}", fontsize=9)
    bar.ax.axvline(1 / n_distances, color="white", linewidth=1.6)
    figure.suptitle(textwrap.fill(title, 56), fontsize=11)
    save_figure(figure, stem)


def _label_heads(axes: Axes, n_layer: int, n_head: int) -> None:
    """Label the layers; label the heads too if there are few."""
    rows = range(n_layer * n_head)
    few = len(rows) <= MOST_LABELLED_HEADS
    if few:
        axes.set_yticks(rows, [str(row % n_head + 1) for row in rows], minor=True)
    centres = [n * n_head + (n_head - 1) / 2 for n in range(n_layer)]
    axes.set_yticks(centres, [f"layer {n + 1}" for n in range(n_layer)])
    axes.set_ylabel(f"heads 1 … {n_head} of each layer", fontsize=9)
    axes.tick_params(axis="y", which="major", length=0, pad=16 if few else 3, labelsize=8.5)
    axes.tick_params(axis="y", which="minor", length=1.5, pad=2, labelsize=6.5)


def text_figure(
    stem: Path,
    weights: Mapping[str, NDArray[np.float64]],
    marked: Mapping[str, NDArray[np.bool_]],
    targets: Sequence[str],
    context: Sequence[str],
    title: str,
) -> None:
    """Draw Figure 6, a panel for each head, as SVG and PNG: rows are targets, columns tokens of the memory.

    Marked tokens are orange. Only the nearest 256 tokens of a longer context are drawn.

    Args:
        stem: path of the files without suffix.
        weights: attention by name of the head, [Q, C]; 0 where a target does not see a token.
        marked: by name of the head, [Q, C]: the tokens that each target attends to most.
        targets: Q symbols.
        context: C symbols, the oldest first.
        title: title of the figure.
    """
    columns = [printable(symbol) for symbol in context[-MOST_COLUMNS:]]
    rows = [printable(symbol) for symbol in targets]
    letters, longest = max(map(len, columns)), max(map(len, rows))
    panel_width = len(columns) * (0.085 if letters == 1 else 0.115)
    panel_height = len(rows) * 0.115
    # Panels with few columns must still be wide enough for their titles.
    width = max(6.5, panel_width) + 0.075 * longest + 0.5
    height = len(weights) * (panel_height + 0.55 + 0.075 * (letters if letters > 1 else 1)) + 2.4
    figure = new_figure(width, height)
    all_axes = figure.subplots(len(weights), 1, squeeze=False)[:, 0]
    largest = max(float(of_head.max()) for of_head in weights.values()) or 1.0  # 0: no target sees a token
    least = largest / 1e3
    norm = LogNorm(least, largest)
    images: list[Any] = []
    for axes, (name, of_head) in zip(all_axes, weights.items(), strict=True):
        values, is_marked = of_head[:, -len(columns) :], marked[name][:, -len(columns) :]
        seen = np.ma.masked_equal(values, 0)
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
