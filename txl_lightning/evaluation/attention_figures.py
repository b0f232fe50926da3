"""Figures 5, 6 and 7: where heads attend by distance, on a piece of text, and by single score terms."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from txl_lightning.data.vocabulary import Vocabulary, without_marks
from txl_lightning.evaluation.losses import Array
from txl_lightning.reporting.canvas import new_figure, plain_text, save_figure

if TYPE_CHECKING:
    from txl_lightning.evaluation.attention import AttentionMaps, TextAttention

# u·k does not depend on the query: the paper shows no softmax over (c) alone.
SCORES = {"a": "(a) content", "b": "(b) content and position", "d": "(d) position"}
MOST_COLUMNS = 256
MOST_LETTERS = 14
FONT = "DejaVu Sans Mono"  # part of matplotlib
MARKED_SHARE = 0.2  # context tokens, for each target


def write_figures(
    maps: AttentionMaps,
    vocabulary: Vocabulary,
    heads: Sequence[tuple[int, int]],
    averaged: str,
    directory: Path,
) -> None:
    """Write as SVG and PNG `by_distance` (Figure 5), `text` (6) and `terms` (7).

    Args:
        maps: rows of Figure 5 (`all`) and Figure 7 (a, b, d).
        vocabulary: names the tokens of Figure 6.
        heads: layer and head of every panel of Figure 6.
        averaged: what the maps are averages over, for titles.
        directory: folder for the files.
    """
    n_head = maps.mean_distance_NH.shape[1]
    title = f"Where {maps.mean_distance_NH.size} heads attend: {averaged}"
    draw_distances(
        directory / "by_distance",
        {"": maps.by_distance["all"]},
        n_head,
        title,
    )
    panels = {}
    for term, words in SCORES.items():
        if term in maps.by_distance:
            panels[f"softmax of {words}"] = maps.by_distance[term]
    if panels:
        draw_distances(
            directory / "terms", panels, n_head, f"Single terms of the score: {averaged}"
        )
    draw_text(directory / "text", maps.text, vocabulary, heads)


def stacked(n_panels: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """Return a figure with one panel below the other, so their letters are readable on a phone."""
    figure = new_figure(width, height)
    return figure, figure.subplots(
        n_panels,
        1,
        squeeze=False,
    )[:, 0].tolist()


def draw_distances(stem: Path, panels: Mapping[str, Array], n_head: int, title: str) -> None:
    """Draw Figure 5, or Figure 7 with a panel for each term, as SVG and PNG: rows are heads, columns positions.

    The oldest token is on the left, the query itself on the right, in reading order.

    Args:
        stem: file path without suffix.
        panels: by name, [R, L]: mean attention from R = N·H heads at the distances 0, …, L - 1.
        n_head: H; a line separates the layers.
        title: figure title.
    """
    rows_PRL = np.stack(list(panels.values()))
    n_panels, n_rows, n_distances = rows_PRL.shape
    height = 1.2 + n_panels * (0.5 + 0.1 * n_rows)
    figure, all_axes = stacked(
        n_panels,
        5.6,
        min(18.0, max(3.4, height)),
    )
    least = 0.1 / n_distances  # a tenth of uniform attention
    norm = LogNorm(least, float(rows_PRL.max()))
    extent = (-n_distances + 0.5, 0.5, n_rows - 0.5, -0.5)
    first_rows = np.arange(0, n_rows, n_head)
    names = [f"layer {1 + row // n_head}" for row in first_rows]
    for axes, name, rows_RL in zip(all_axes, panels, rows_PRL, strict=True):
        shown = np.maximum(
            rows_RL[:, ::-1],
            least,
        )
        image = axes.imshow(shown, norm=norm, aspect="auto", extent=extent)
        axes.set_title(name, fontsize=10)
        axes.set_yticks(first_rows + n_head / 2 - 0.5, names)
        axes.hlines(
            first_rows[1:] - 0.5,
            *extent[:2],
            color="white",
            linewidth=1.2,
        )
    axes.set_xlabel("relative position j − i (tokens)")
    figure.supylabel(f"heads 1 … {n_head} of each layer", fontsize=9)
    label = f"mean attention (share of 1); evenly spread: 1/{n_distances}"
    save_images(figure, image, textwrap.fill(title, 56), label, stem)


def draw_text(
    stem: Path, text: TextAttention, vocabulary: Vocabulary, heads: Sequence[tuple[int, int]]
) -> None:
    """Draw Figure 6, a panel for each head, as SVG and PNG: rows are targets, columns memory tokens.

    Coloured are the tokens that a target attends to most. Only the nearest 256 tokens in a longer context are drawn.

    Args:
        stem: file path without suffix.
        text: attention on the tokens before the piece; 0 where a target does not see a token.
        vocabulary: names the tokens.
        heads: layer and head of every panel.
    """
    columns = [
        printable(
            vocabulary,
            token,
        )
        for token in text.context[-MOST_COLUMNS:]
    ]
    rows = [printable(vocabulary, token) for token in text.targets]
    letters = max(map(len, columns))
    # Panels with few columns must still be wide enough for their titles.
    width = 1.0 + max(6.5, 0.1 * len(columns))
    panel_height = 0.55 + 0.115 * len(rows) + 0.075 * letters
    figure, all_axes = stacked(
        len(heads),
        width,
        1.8 + len(heads) * panel_height,
    )
    largest = max(float(text.weights_NHQC[head].max()) for head in heads)
    norm = LogNorm(largest / 1e3, largest)
    for axes, (layer, head) in zip(all_axes, heads, strict=True):
        weights_QC = text.weights_NHQC[layer, head]
        least_Q1 = np.quantile(
            weights_QC,
            1 - MARKED_SHARE,
            axis=1,
            keepdims=True,
        )
        shown = np.ma.masked_less(
            weights_QC,
            least_Q1,
        )[:, -MOST_COLUMNS:]
        image = axes.imshow(shown, norm=norm, aspect="auto", cmap="Oranges")
        axes.set_title(
            f"layer {layer + 1}, head {head + 1}",
            fontsize=10,
            loc="left",
        )
        axes.set_xticks(
            range(len(columns)),
            columns,
            rotation=90 if letters > 1 else 0,
        )
        axes.set_yticks(range(len(rows)), rows)
        axes.tick_params(length=0, pad=2, labelsize=6.5, labelfontfamily=FONT)
        axes.set_ylabel("target (token to predict)", fontsize=9)
    axes.set_xlabel("token of the memory, oldest on the left")
    title = f"Attention on the memory, from token {text.position:,} of the text on"
    label = "attention (share of 1) on the 20 % of the tokens that a target attends to most"
    save_images(figure, image, title, label, stem)


def save_images(figure: Figure, image: Any, title: str, label: str, stem: Path) -> None:
    """Add the title and a bar of the colours of an image, and save the figure."""
    figure.suptitle(title, fontsize=11, parse_math=False)
    bar = figure.colorbar(
        image,
        ax=figure.axes,
        extend="min",
        location="bottom",
        aspect=50,
    )
    bar.set_label(label, fontsize=9)
    save_figure(figure, stem)


def printable(vocabulary: Vocabulary, token: int) -> str:
    """Return a token in glyphs that the font has, in escapes without them; long words are cut."""
    symbol = vocabulary.decode(without_marks(np.array([token])))
    font = font_manager.get_font(font_manager.findfont(FONT))
    word = repr(symbol)[1:-1].replace(
        " ",
        "␣",
    )
    if not all(font.get_char_index(ord(letter)) for letter in word):
        word = ascii(symbol)[1:-1]
    if len(word) > MOST_LETTERS:
        word = word[: MOST_LETTERS - 1] + "…"
    return plain_text(word)
