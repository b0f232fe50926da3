"""Figures 5, 6 and 7: where heads attend by distance, on a piece of text, and by single terms of the score."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from txl_lightning.evaluation.losses import Array
from txl_lightning.reporting.canvas import new_figure, plain_text, save_figure

if TYPE_CHECKING:
    from txl_lightning.evaluation.attention import TextAttention

# u·k does not depend on the query: the paper shows no softmax of (c) alone.
SCORES = {"a": "(a) content", "b": "(b) content and position", "d": "(d) position"}
MOST_COLUMNS = 256
MOST_LETTERS = 14
FONT = "DejaVu Sans Mono"  # part of matplotlib
SIGNS = {" ": "␣", "\n": "↵", "\t": "⇥"}
MARKED_SHARE = 0.2  # of the context, for each target


def write_figures(
    results: dict[str, Any], maps: dict[str, Array], text: TextAttention, directory: Path
) -> None:
    """Write as SVG and PNG `by_distance` (Figure 5), `text` (6) and `terms` (7).

    Args:
        results: contents of `attention.json`.
        maps: contents of `attention.npz`: rows of Figure 5 (`all`) and Figure 7 (a, b, d).
        text: attention of Figure 6.
        directory: folder for the files.
    """
    heads = results["heads"]
    n_head = heads[-1]["head"]
    corpus = f"{results['corpus']['name']} ({results['split']})"
    averaged = f"average over {results['queries']:,} tokens of {corpus}"
    title = f"Where {len(heads)} heads attend: {averaged}"
    draw_distances(
        directory / "by_distance",
        {"": maps["all"]},
        n_head,
        title,
    )
    title = f"Attention on the memory, from token {text.position:,} of {corpus} on"
    draw_text(
        directory / "text",
        text,
        results["text"]["heads"],
        title,
    )
    panels = {f"softmax of {words}": maps[term] for term, words in SCORES.items() if term in maps}
    if panels:
        draw_distances(
            directory / "terms", panels, n_head, f"Single terms of the score: {averaged}"
        )


def draw_distances(stem: Path, panels: Mapping[str, Array], n_head: int, title: str) -> None:
    """Draw Figure 5, or Figure 7 with a panel for each term, as SVG and PNG: rows are heads, columns positions.

    Panels stand one below the other, so that their letters can be read at the width of a phone.

    Args:
        stem: path of the files without suffix.
        panels: by name, [R, L]: mean attention of R = N·H heads on the distances 0, …, L - 1.
        n_head: H; a line separates the layers.
        title: title of the figure.
    """
    rows_PRL = np.stack(list(panels.values()))
    n_panels, n_rows, n_distances = rows_PRL.shape
    height = 1.2 + n_panels * (0.5 + 0.1 * n_rows)
    figure = new_figure(5.6, min(18.0, max(3.4, height)))
    all_axes = figure.subplots(
        n_panels,
        1,
        sharex=True,
        squeeze=False,
    )[:, 0]
    norm = LogNorm(0.1 / n_distances, float(rows_PRL.max()))  # from a tenth of uniform attention on
    for axes, name, rows_RL in zip(all_axes, panels, rows_PRL, strict=True):
        image = _draw_heads(axes, rows_RL, n_head, norm)
        axes.set_title(name, fontsize=10)
    all_axes[-1].set_xlabel("relative position j − i (tokens)")
    figure.supylabel(f"heads 1 … {n_head} of each layer", fontsize=9)
    bar = figure.colorbar(
        image, ax=list(all_axes), pad=0.02, extend="min", location="bottom", aspect=40
    )
    bar.set_label(
        f"mean attention (share of 1); white line: evenly spread, 1/{n_distances}", fontsize=9
    )
    bar.ax.axvline(
        1 / n_distances,
        color="white",
        linewidth=1.6,
    )
    bar.ax.tick_params(which="minor", labelbottom=False)
    figure.suptitle(textwrap.fill(title, 56), fontsize=11)
    save_figure(figure, stem)


def _draw_heads(axes: Axes, rows_RL: Array, n_head: int, norm: LogNorm) -> AxesImage:
    """Draw a row for each head: the oldest token on the left, the query itself on the right, in reading order."""
    n_rows, n_distances = rows_RL.shape
    extent = (-n_distances + 0.5, 0.5, n_rows - 0.5, -0.5)
    shown = np.maximum(rows_RL[:, ::-1], norm.vmin or 0.0)
    image = axes.imshow(
        shown,
        norm=norm,
        aspect="auto",
        interpolation="nearest",
        extent=extent,
    )
    first_rows = np.arange(0, n_rows, n_head)
    names = [f"layer {layer + 1}" for layer in range(len(first_rows))]
    axes.set_yticks(first_rows + n_head / 2 - 0.5, names)
    for row in first_rows[1:]:
        axes.axhline(row - 0.5, color="white", linewidth=1.2)
    return image


def draw_text(stem: Path, text: TextAttention, heads: list[str], title: str) -> None:
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
    letters = max(map(len, columns))
    # Panels with few columns must still be wide enough for their titles.
    width = 1.0 + max(6.5, 0.1 * len(columns))
    panel_height = 0.55 + 0.115 * len(rows) + 0.075 * letters
    figure = new_figure(width, 1.8 + len(heads) * panel_height)
    largest = max(float(text.weights[head].max()) for head in heads)
    norm = LogNorm(largest / 1e3, largest)
    all_axes = figure.subplots(len(heads), 1, squeeze=False)[:, 0]
    for axes, head in zip(all_axes, heads, strict=True):
        image = _draw_weights(
            axes,
            text.weights[head],
            len(columns),
            norm,
        )
        layer, number = head.split(":")
        axes.set_title(
            f"layer {layer}, head {number}",
            fontsize=10,
            loc="left",
        )
        axes.set_xticks(range(len(columns)), columns, rotation=0 if letters == 1 else 90)
        axes.set_yticks(range(len(rows)), rows)
        axes.tick_params(
            length=0,
            pad=2,
            labelsize=6.5,
            labelfontfamily=FONT,
        )
        axes.set_ylabel("target (token to predict)", fontsize=9)
    axes.set_xlabel("token of the memory, oldest on the left")
    bar = figure.colorbar(
        image, ax=list(all_axes), pad=0.01, aspect=60, extend="min", location="bottom"
    )
    words = (
        "attention (share of 1); orange: the 20 % that a target attends to most, grey: the others"
    )
    bar.set_label(words, fontsize=9)
    figure.suptitle(title, fontsize=11, parse_math=False)
    save_figure(figure, stem)


def _draw_weights(axes: Axes, weights_QC: Array, n_columns: int, norm: LogNorm) -> AxesImage:
    """Draw the attention of a head: orange on the tokens that a target attends to most, grey on the others."""
    seen = weights_QC[:, -n_columns:]
    marked = most_attended(weights_QC)[:, -n_columns:]
    shown = np.maximum(seen, norm.vmin or 0.0)
    options: dict[str, Any] = {
        "norm": norm,
        "aspect": "auto",
        "interpolation": "nearest",
    }
    axes.imshow(
        np.ma.masked_where(marked | (seen == 0), shown),
        cmap="Greys",
        **options,
    )
    return axes.imshow(
        np.ma.masked_where(~marked, shown),
        cmap="Oranges",
        **options,
    )


def printable(symbol: str) -> str:
    """Return a token in glyphs of the font: signs for white space, escapes for what has no glyph, long words cut."""
    font = font_manager.get_font(font_manager.findfont(FONT))
    word = ""
    for letter in symbol:
        if letter in SIGNS:
            word += SIGNS[letter]
        elif letter.isprintable() and font.get_char_index(ord(letter)):
            word += letter
        else:
            word += ascii(letter)[1:-1]
    if len(word) > MOST_LETTERS:
        word = word[: MOST_LETTERS - 1] + "…"
    return plain_text(word)


def most_attended(weights_QC: Array) -> NDArray[np.bool_]:
    """Mark the fifth of the C tokens with the most attention in every row."""
    n_marked = max(1, round(MARKED_SHARE * weights_QC.shape[1]))
    least_Q1 = np.sort(weights_QC, axis=1)[:, [-n_marked]]
    return (weights_QC >= least_Q1) & (weights_QC > 0)
