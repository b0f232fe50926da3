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
    rows = dict(maps.by_distance)
    n_layers = len(maps.mean_distance_NH)
    draw_distances(
        directory / "by_distance",
        {"all terms": rows.pop("all")},
        n_layers,
        averaged,
    )
    if rows:
        panels = {f"softmax of {SCORES[term]}": rows[term] for term in rows}
        draw_distances(directory / "terms", panels, n_layers, averaged)
    draw_text(directory / "text", maps.text, vocabulary, heads)


def heat_maps(
    panels: Mapping[str, Any], least: float, title: str, inches: tuple[float, float], **look: Any
) -> tuple[Figure, list[Axes]]:
    """Draw one panel below the other, so their letters are readable on a phone.

    Args:
        panels: rows × columns by panel title; masked values stay white.
        least: smaller values get its colour.
        title: figure title.
        inches: width of the figure, and height of a panel.
        look: arguments of matplotlib's `imshow`.
    """
    width, height = inches
    figure = new_figure(width, 1.6 + len(panels) * height)
    all_axes = figure.subplots(
        len(panels),
        1,
        squeeze=False,
    )[:, 0].tolist()
    largest = 10 * least  # a panel may be masked as a whole
    for values in panels.values():
        largest = max(largest, float(np.ma.filled(values, 0.0).max()))
    norm = LogNorm(least, largest)
    for axes, (name, values) in zip(
        all_axes,
        panels.items(),
        strict=True,
    ):
        image = axes.imshow(
            values,
            norm=norm,
            aspect="auto",
            **look,
        )
        axes.set_title(name, fontsize=10)
    figure.suptitle(
        textwrap.fill(title, 56),
        fontsize=11,
        parse_math=False,
    )
    bar = figure.colorbar(
        image,
        ax=all_axes,
        extend="min",
        location="bottom",
        aspect=50,
    )
    bar.set_label("attention (share of 1)", fontsize=9)
    return figure, all_axes


def draw_distances(stem: Path, panels: Mapping[str, Array], n_layers: int, averaged: str) -> None:
    """Draw Figure 5, or Figure 7 with a panel for each term: rows are heads, columns positions.

    The oldest token is on the left, the query itself on the right, in reading order.

    Args:
        stem: file path without suffix.
        panels: by name, [R, L]: mean attention from R = N·H heads at the distances 0, …, L - 1.
        n_layers: N.
        averaged: what the rows are averages over.
    """
    n_rows, n_distances = next(iter(panels.values())).shape
    least = 0.1 / n_distances  # a tenth of uniform attention
    shown = {}
    for name, rows_RL in panels.items():
        shown[name] = np.maximum(rows_RL[:, ::-1], least)
    figure, all_axes = heat_maps(
        shown,
        least,
        f"Attention by distance, {averaged}",
        (5.6, min(6.0, 1.5 + 0.1 * n_rows)),
        extent=(-n_distances + 0.5, 0.5, n_rows - 0.5, -0.5),
    )
    for axes in all_axes:
        axes.set_yticks(np.arange(n_layers) * n_rows / n_layers - 0.5)
        axes.set_yticklabels([f"layer {n + 1}" for n in range(n_layers)], va="top")
    axes.set_xlabel("relative position j − i (tokens)")
    save_figure(figure, stem)


def draw_text(
    stem: Path, text: TextAttention, vocabulary: Vocabulary, heads: Sequence[tuple[int, int]]
) -> None:
    """Draw Figure 6, a panel for each head: rows are targets, columns memory tokens.

    Coloured are the 20 % of the tokens that a target attends to most, among the nearest 256.

    Args:
        stem: file path without suffix.
        text: attention on the tokens before the piece; 0 where a target does not see a token.
        vocabulary: names the tokens.
        heads: layer and head of every panel.
    """
    columns = [printable(vocabulary, token) for token in text.context[-MOST_COLUMNS:]]
    rows = [printable(vocabulary, token) for token in text.targets]
    panels = {}
    for layer, head in heads:
        weights_QC = text.weights_NHQC[layer, head]
        least_Q1 = np.quantile(
            weights_QC,
            1 - MARKED_SHARE,
            axis=1,
            keepdims=True,
        )
        shown = np.ma.masked_less(weights_QC, least_Q1)[:, -MOST_COLUMNS:]
        panels[f"layer {layer + 1}, head {head + 1}"] = shown
    figure, all_axes = heat_maps(
        panels,
        max(float(text.weights_NHQC[head].max()) for head in heads) / 1e3,
        f"Attention on the memory, from token {text.position:,} of the text on",
        (1.0 + max(6.5, 0.1 * len(columns)), 1.5 + 0.115 * len(rows)),
        cmap="Oranges",
    )
    for axes in all_axes:
        axes.set_xticks(
            range(len(columns)),
            columns,
            rotation=90,
        )
        axes.set_yticks(range(len(rows)), rows)
        axes.tick_params(
            length=0,
            pad=2,
            labelsize=6.5,
            labelfontfamily=FONT,
        )
        axes.set_ylabel("target (token to predict)", fontsize=9)
    axes.set_xlabel("token of the memory, oldest on the left")
    save_figure(figure, stem)


def printable(vocabulary: Vocabulary, token: int) -> str:
    """Return a token in glyphs that the font has, in escapes without them; long words are cut."""
    symbol = vocabulary.decode(without_marks(np.array([token])))
    font = font_manager.get_font(font_manager.findfont(FONT))
    word = repr(symbol)[1:-1].replace(" ", "␣")
    if not all(font.get_char_index(ord(letter)) for letter in word):
        word = ascii(symbol)[1:-1]
    if len(word) > MOST_LETTERS:
        word = f"{word[: MOST_LETTERS - 1]}…"
    return plain_text(word)
