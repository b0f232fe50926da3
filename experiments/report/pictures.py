"""Pictures at the top of the report: the arms of Table 6, and the claims with effects and intervals."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from experiments.paper import TABLE_6
from experiments.report.sections import Number, Table, cell_text, decimal, percent
from experiments.report.verdicts import SIGNS, mark_of
from txl_lightning.reporting.canvas import COLOURS, new_figure, save_figure

CLAIMS_FILE, OVERVIEW_FILE = "figures/claims.png", "figures/overview.png"
PLAIN = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # hides the lines of the grid behind letters
HERE, PAPER, SOFT = COLOURS[0], COLOURS[1], "#4a4f57"
MARK_COLOURS = {"holds": "#0b6b50", "does not hold": "#a33a00"}
WIDEST_LINEAR = 20.0  # percent; losses farther from zero are drawn on a logarithmic scale beyond 2 %
CLAIMS_ALT = "One line per claim: its effect with the 95 % interval in this run, the paper's effect, the mark"
CLAIMS_CAPTION = (
    "Effect of each claim with its 95 % interval, right of the line as the claim says; an arrow: the interval is open. "
    "Each panel has its own scale. A claim of several parts shows the part that supports it least."
)
OVERVIEW_ALT = "Test loss of every arm of Table 6 in this run, in the order of the paper, beside the paper's perplexity"
OVERVIEW_CAPTION = (
    "test loss here, lower is better, in the order of the paper’s table, whose perplexities on other data are on the "
    "right. Here, too, losses should grow from top to bottom."
)


@dataclass(frozen=True)
class Panel:
    """Part of the picture of claims, with a scale of its own.

    Args:
        title: above it; says what is drawn in which unit.
        relative: draws effects in percent; else in their unit.
        factor: draws percent as factors.
    """

    title: str
    relative: bool = True
    factor: bool = False

    def value(self, claim: Mapping[str, Any], end: str = "") -> float | None:
        """Return an effect, or an `end` of its interval (`_low`, `_high`, `_paper`), on the scale of the panel."""
        if self.relative:
            found = claim[f"relative{end}"]
            return 1 + found / 100 if self.factor and found is not None else found
        found = None if end == "_paper" else claim[end.removeprefix("_") or "effect"]
        return None if found is None else float(found)

    @property
    def zero(self) -> float:
        """No effect."""
        return 1.0 if self.factor else 0.0

    def text(self, value: float) -> str:
        """Format an effect of the panel."""
        if self.factor:
            return f"× {decimal(value, 2 if value < 10 else 0)}"
        if self.relative:
            return percent(value)
        return decimal(value, 0 if abs(value) >= 10 or value == int(value) else 2, signed=True)


PANELS = {
    "losses": Panel("losses: % of the loss that should be higher"),
    "lengths": Panel("effective context: difference in tokens", relative=False),
    "speed": Panel("speed: by what factor it grows", factor=True),
    "attention": Panel("attention by term: difference", relative=False),
}


def draw_overview(path: Path, table: Table) -> bool:
    """Draw the losses of the arms of Table 6 in the paper's order, as PNG and SVG; False if it has none yet.

    Args:
        path: of the PNG.
        table: Table 6 of the report.
    """
    rows = sorted(_arms(table), key=lambda row: row[2].value)
    if not rows:
        return False
    unit = next(column.unit for column in table.columns if column.key == "best")
    ranks = sorted(row.ppl_best for row in TABLE_6)  # of all rows, whether they were run or not
    figure = new_figure(4.6, 0.9 + 0.42 * len(rows))
    axes = figure.add_subplot()
    for y, (title, loss, theirs) in enumerate(rows):
        error = loss.standard_error or 0.0
        axes.plot([loss.value - error, loss.value + error], [y + 0.15] * 2, color=HERE, linewidth=2.4)
        axes.plot([loss.value], [y + 0.15], color=HERE, marker="o", markersize=6)
        left, right = axes.get_yaxis_transform(), axes.get_yaxis_transform()
        name = f"{title}: {cell_text(Number(loss.value, loss.digits, loss.standard_error))}"
        axes.text(0.0, y - 0.22, name, transform=left, fontsize=9.5, va="center", bbox=PLAIN)
        in_paper = f"{ranks.index(theirs.value) + 1}.  {decimal(theirs.value, 2)}"
        axes.text(1.02, y + 0.1, in_paper, transform=right, fontsize=9.5, va="center", color=PAPER)
    axes.text(
        1.02, -0.85, "paper: rank, ppl", transform=axes.get_yaxis_transform(), fontsize=9.5, color=PAPER, ha="left"
    )
    axes.set_ylim(len(rows) - 0.5, -0.6)
    axes.set_xlabel(f"test loss here ({unit}) ± standard error", fontsize=10)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    _clean(axes)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_figure(figure, path.with_suffix(""))
    return True


def _arms(table: Table) -> Iterator[tuple[str, Number, Number]]:
    """Title, loss here and perplexity of the paper of each arm that has both."""
    for key, row in table.rows.items():
        loss, theirs = row.get("best"), row.get("paper_best")
        if isinstance(loss, Number) and isinstance(theirs, Number):
            yield table.title(key), loss, theirs


def draw_claims(path: Path, claims: Sequence[Mapping[str, Any]]) -> bool:
    """Draw the claims as PNG and SVG, which can be read at the width of a phone; False if none has an effect yet.

    Args:
        path: of the PNG.
        claims: of `results.json`.
    """
    numbered = [(number, claim) for number, claim in enumerate(claims, 1) if claim["effect"] is not None]
    panels = {name: [entry for entry in numbered if entry[1]["panel"] == name] for name in PANELS}
    panels = {name: entries for name, entries in panels.items() if entries}
    if not panels:
        return False
    heights = [0.75 + 0.74 * len(entries) for entries in panels.values()]
    figure = new_figure(4.6, 0.5 + sum(heights))
    drawn = figure.subplots(len(panels), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    for axes, (name, entries) in zip(drawn, panels.items(), strict=True):
        _draw_panel(axes, PANELS[name], entries)
    handles = [
        drawn[0].plot([], [], color=HERE, marker="o", linewidth=2, label="here, 95 % interval")[0],
        drawn[0].plot([], [], color=PAPER, marker="D", fillstyle="none", linestyle="none", label="paper")[0],
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=2, frameon=False, fontsize=10.5)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_figure(figure, path.with_suffix(""))
    return True


def _draw_panel(axes: Axes, panel: Panel, entries: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
    for y, (number, claim) in enumerate(entries):
        _line(axes, panel, y, number, claim)
    axes.axvline(panel.zero, color="black", linewidth=0.9, zorder=0)
    found = (panel.value(claim, end) for _, claim in entries for end in ("", "_low", "_high", "_paper"))
    values = [panel.zero, *(value for value in found if value is not None)]
    if panel.factor:
        axes.set_xscale("log")
        values = [math.log(max(value, 1e-3)) for value in values]
    wide = panel.relative and not panel.factor and max(map(abs, values)) > WIDEST_LINEAR
    if wide:
        axes.set_xscale("symlog", linthresh=2.0)
    room = 0.08 * (max(values) - min(values)) or 0.1
    ends = [1.6 * min(values) - 1, 1.6 * max(values) + 1] if wide else [min(values) - room, max(values) + room]
    axes.set_xlim(*(map(math.exp, ends) if panel.factor else ends))
    axes.set_ylim(len(entries) - 0.7, -0.65)
    if not wide:
        axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}".replace("-", "−")))
    axes.set_title(panel.title, fontsize=10.5, loc="left", pad=8, fontweight="bold")
    _clean(axes)


def _clean(axes: Axes) -> None:
    """Leave out everything but the axis of the values."""
    axes.set_yticks([])
    axes.tick_params(labelsize=10)
    axes.grid(axis="x", alpha=0.25)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)


def _line(axes: Axes, panel: Panel, y: int, number: int, claim: Mapping[str, Any]) -> None:
    """One claim: its name, then its numbers and mark, then interval and markers."""
    mark = mark_of(claim)
    left, right = axes.get_yaxis_transform(), axes.get_yaxis_transform()
    name = textwrap.shorten(claim["short"], 56, placeholder="…")
    axes.text(0.0, y - 0.37, f"{number}  {name}", transform=left, fontsize=10, va="center", bbox=PLAIN)
    axes.text(
        1.0, y - 0.14, f"{SIGNS[mark]} {mark}", transform=right, fontsize=10, va="center", ha="right",
        color=MARK_COLOURS.get(mark, SOFT), fontweight="bold", bbox=PLAIN,
    )  # fmt: skip
    effect, low, high, paper = (panel.value(claim, end) for end in ("", "_low", "_high", "_paper"))
    assert effect is not None
    if low is not None or high is not None:
        ends = [effect if end is None else end for end in (low, high)]
        axes.plot(ends, [y + 0.12, y + 0.12], color=HERE, linewidth=2.4, solid_capstyle="butt")
    if (low is None) != (high is None):  # an open interval has an arrow
        axes.plot([effect], [y + 0.12], color=HERE, marker="<" if low is None else ">", markersize=9)
    axes.plot([effect], [y + 0.12], color=HERE, marker="o", markersize=6)
    if paper is not None:
        axes.plot([paper], [y + 0.12], color=PAPER, marker="D", fillstyle="none", zorder=3)
    if claim["relative_paper"] is None:
        theirs = ""
    else:
        theirs = f" (paper {percent(claim['relative_paper']) if paper is None else panel.text(paper)})"
        theirs = theirs if paper is not None else f" = {percent(claim['relative'])}{theirs}"
    unit = f" {claim['unit']}" if claim["unit"] and not panel.relative else ""
    axes.text(
        0.0, y - 0.14, f"{panel.text(effect)}{unit}{theirs}", transform=left, fontsize=9, va="center", color=SOFT,
        bbox=PLAIN,
    )  # fmt: skip
