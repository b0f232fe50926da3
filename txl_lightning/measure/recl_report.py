"""Report of `txl recl`, made from `recl.json`: Table 8, Figures 3 and 4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from txl_lightning.measure.commands import Table, write_markdown
from txl_lightning.reporting.canvas import looks, new_figure, plain_text, save_with_legend
from txl_lightning.runs.metrics import unit_name

MOST_TICKS = 12
LAST_DOUBLINGS = 3  # in the table
SIZE = (5.4, 4.4)  # inches; letters can be read at the width of a phone


def write_report(results: dict[str, Any], directory: Path) -> list[str]:
    """Write the tables and the figures.

        recl.md                  losses and gains by context, Table 8, differences
        gains_*.svg|png          Figure 3, a file for each r and group
        contexts.svg|png         Figure 4
        differences.svg|png      loss minus that of the first model, if there are several

    Args:
        results: contents of `recl.json`.
        directory: folder for the files.

    Returns:
        Lines to print: the tables and their notes.
    """
    alone, table_8, differences = _gains(results), _table_8(results), _differences(results)
    grouped = "; ".join(", ".join(group["models"]) for group in results["groups"])
    parts: list[Table | str] = ["Loss by context and its gain, without a group:", "", alone, ""]
    parts += [f"RECL in the group of: {grouped}", "", table_8, ""]
    parts += [differences, ""] if differences[1] else []
    parts += _notes(results)
    lines = write_markdown(directory / "recl.md", *parts)
    for stem, (title, gains, needed) in _gains_by_file(results).items():
        gain_figure(directory / stem, results, title, gains, needed)
    context_figure(directory / "contexts", results)
    if len(results["models"]) > 1:
        difference_figure(directory / "differences", results)
    return lines


def line_series(results: dict[str, Any]) -> dict[str, tuple[Sequence[float], dict[str, Any], str, str]]:
    """Return the curves of Figures 3 and 4 for Weights & Biases: by panel, x, named curves, the name of x, a title."""
    contexts, unit = results["contexts"], results["unit"]
    losses = {model["name"]: model[unit] for model in results["models"]}
    gains = {
        stem: (contexts[:-1], {**of_models, "needed for a longer RECL": needed}, "c", title)
        for stem, (title, of_models, needed) in _gains_by_file(results).items()
    }
    return {**gains, unit: (contexts, losses, "context", f"{unit_name(results['corpus']['level'])} by context")}


def gain_figure(
    stem: Path, results: dict[str, Any], title: str, gains: Mapping[str, Sequence[float]], needed: Sequence[float]
) -> None:
    """Draw Figure 3, exp f(c, c) - exp f(c, c') for every step from c to c', as SVG and PNG.

    Args:
        stem: path of the files without suffix.
        results: contents of `recl.json`.
        title: title of the figure.
        gains: perplexity gains by model.
        needed: threshold · exp f(c, c), the smallest gain that counts.
    """
    contexts, unit = results["contexts"], results["context_unit"]
    figure = new_figure(*SIZE)
    axes, steps = figure.add_subplot(), range(len(contexts) - 1)
    for (name, curve), look in zip(gains.items(), looks(), strict=False):
        _draw(axes, name, steps, curve, look)
    axes.plot(steps, needed, color="0.35", linestyle="--", linewidth=1.1, label="needed for a longer RECL")
    # Gains span decades and can be exactly zero: the axis is linear only near zero.
    linear = max(min(needed) / 10, 1e-9)
    axes.set_yscale("symlog", linthresh=linear, linscale=0.5)
    axes.set_ylim(bottom=0)
    # A tick between 0 and the first decade would overlap the 0.
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: "" if 0 < value < linear / 2 else f"{value:g}"))
    every = -(-len(steps) // MOST_TICKS)
    labels = [f"{contexts[i]} → {contexts[i + 1]}" for i in steps]
    axes.set_xticks(list(steps)[::every], labels[::every], rotation=40, ha="right", fontsize=8)
    axes.set(xlabel=f"context c → c' ({unit}s)", ylabel="gain: exp f(c, c) − exp f(c, c') (perplexity)", title=title)
    save_with_legend(figure, axes, stem)


def context_figure(stem: Path, results: dict[str, Any]) -> None:
    """Draw Figure 4, perplexity or bits per character by context, as SVG and PNG."""
    figure, unit, contexts = new_figure(*SIZE), results["unit"], results["contexts"]
    axes = figure.add_subplot()
    for model, look in zip(results["models"], looks(), strict=False):
        _draw(axes, model["name"], contexts, model[unit], look)
    _context_axis(axes, results)
    axes.set(ylabel=unit_name(results["corpus"]["level"]), title="Loss by context, all positions")
    save_with_legend(figure, axes, stem)


def difference_figure(stem: Path, results: dict[str, Any]) -> None:
    """Draw l_i(c) - l_first(c) in nats by context for all models but the first, as SVG and PNG.

    Bands are standard errors over blocks of the differences paired by position: variation of the text that both models
    share is not in them.
    """
    figure, contexts, first = new_figure(*SIZE), results["contexts"], results["models"][0]["name"]
    axes, of_models = figure.add_subplot(), iter(looks())
    axes.axhline(0, **{**next(of_models), "marker": ""}, linewidth=1.1, label=plain_text(first))
    for found, look in zip((one for one in results["differences"] if one["model"] == first), of_models, strict=False):
        mean, error = -np.array(found["nll"]), np.array(found["nll_standard_error"])
        _draw(axes, found["minus"], contexts, mean, look)
        axes.fill_between(contexts, mean - error, mean + error, color=look["color"], alpha=0.12, linewidth=0)
    _context_axis(axes, results)
    title = plain_text(f"Loss minus that of {first} (± standard error)")
    axes.set(ylabel="difference of the loss (nats)", title=title)
    save_with_legend(figure, axes, stem)


def _draw(axes: Axes, name: str, x: Any, y: Any, look: Mapping[str, Any]) -> None:
    axes.plot(x, y, **look, markersize=3.5, linewidth=1.4, label=plain_text(name))


def _context_axis(axes: Axes, results: dict[str, Any]) -> None:
    """Label the contexts, on a logarithmic axis if the grid is uneven."""
    ticks = results["contexts"][:: -(-len(results["contexts"]) // MOST_TICKS)]
    slant: dict[str, Any] = {}
    if results["step"] is None:
        axes.set_xscale("log", base=2)
        slant = {"rotation": 40, "ha": "right"}
    axes.set_xticks(ticks, [str(c) for c in ticks], **slant)
    axes.set_xlabel(f"context ({results['context_unit']}s)")


def _gains(results: dict[str, Any]) -> Table:
    """Return what needs no group: losses at both ends of the grid, and what more context gains."""
    unit, context_unit, contexts = results["unit"], results["context_unit"], results["contexts"]
    chain = {contexts[0] << k for k in range(32)}
    rows = []
    for model in results["models"]:
        limit = f"{model['limit']} tokens" if model["limit"] and context_unit == "byte" else str(model["limit"] or "–")
        losses = list(zip(model[unit], model[f"{unit}_standard_error"], strict=True))
        doublings = [found for found in model["doublings"] if found["from"] in chain][-LAST_DOUBLINGS:]
        values = [losses[0], losses[-1], *((found["bits"], found["standard_error"]) for found in doublings)]
        cells = [f"{value:.3f} ± {error:.3f}" for value, error in values]
        rows.append([model["name"], model["kind"], limit, *cells, str(model["within_1_percent"])])
    header = ["model", "kind", "sees at most", *(f"{unit} at {c} {context_unit}s" for c in (contexts[0], contexts[-1]))]
    header += [f"bits {found['from']} → {found['to']}" for found in doublings]
    return [*header, "within 1 %"], rows


def _table_8(results: dict[str, Any]) -> Table:
    """Return RECL with its interval, and guarded RECL, of every model."""
    fractions, several = [str(float(r)) for r in results["fractions"]], len(results["groups"]) > 1
    rows = []
    for model in results["models"]:
        of_fractions = [model["recl"][r] for r in fractions]
        cells = [_bounded(found) for found in of_fractions]
        if results["bootstrap"]:
            ends = [(found["low"], _bounded(found, "high", "high_at_least")) for found in of_fractions]
            cells = [f"{cell} [{low}, {high}]" for cell, (low, high) in zip(cells, ends, strict=True)]
        cells += [_bounded(found, "guarded", "guarded_at_least") for found in of_fractions]
        rows.append([model["name"], *([model["group"]] if several else []), *cells])
    lengths = [*(f"RECL r = {r}" for r in fractions), *(f"guarded r = {r}" for r in fractions)]
    return ["model", *(["group"] if several else []), *lengths], rows


def _bounded(length: dict[str, Any], value: str = "value", at_least: str = "at_least") -> str:
    return f"{'≥ ' if length[at_least] else ''}{length[value]}"


def _differences(results: dict[str, Any]) -> Table:
    """Return the difference of every two models at the longest context."""
    longest = f"{results['contexts'][-1]} {results['context_unit']}s"
    rows = [
        [f"{one['model']} − {one['minus']}", f"{one['nll'][-1]:+.4f} [{one['low'][-1]:+.4f}, {one['high'][-1]:+.4f}]"]
        for one in results["differences"]
    ]
    return ["difference, paired by position", f"nats at {longest}, 95 % interval"], rows


def _notes(results: dict[str, Any]) -> list[str]:
    """Describe the measurement, its precision and the signs of the table."""
    contexts, models = results["contexts"], results["models"]
    corpus, positions, longest = results["corpus"], results["positions"], f"{contexts[-1]} {results['context_unit']}s"
    key = {model["name"]: found for model in models if (found := model["key_tokens"])}
    shares = ", ".join(f"{name} {found['share']:.1%} ({found['share_of_rises']:.1%})" for name, found in key.items())
    own = {one["name"]: nats for one in models if one["scoring"] == "direct" and (nats := one["one_pass_difference"])}
    a, b = results["key_contexts"]
    notes: dict[str, Any] = {
        f"{positions['number']:,} positions of {corpus['name']} ({results['split']}) in {positions['blocks']} blocks "
        f"spread evenly over the text; ± over blocks. A step from a context of the grid to the next counts if its "
        f"relative gain is at least {results['threshold']:.3g}.": True,
        f"Within 1 %: the first context whose loss is at most 1 % above that at {longest}. Sees at most: the positions "
        "that a model has or was trained with.": True,
        "Contexts are bytes of text, cut to whole tokens; losses are per byte of the pieces of text that all "
        "tokenizers have in common.": results["context_unit"] == "byte",
        f"{positions['cut']:,} positions have fewer than {longest} of context, because their document is shorter "
        "(documents=respect).": positions["cut"],
        f"In brackets: 95 % interval over {results['bootstrap']:,} resamples of the blocks. ≥: steps still counted at "
        f"{longest}, where the grid ends (max_context).": results["bootstrap"],
        "RECL at r is of the share r of positions that are hardest; r = 1.0 is of all.": True,
        "Guarded: a step must also lower the model's own mean loss, over all and over hard positions.": True,
        f"Key tokens, whose loss falls (rises) by more than {results['key_gain']:g} nats from {a} to {b} tokens: "
        f"{shares}.": key,
    }
    for name, nats in own.items():
        notes[f"{name} is read in windows of exactly c tokens: one pass differs by up to {nats:.3g} nats."] = True
    return [note for note, applies in notes.items() if applies]


def _gains_by_file(results: dict[str, Any]) -> dict[str, tuple[str, dict[str, list[float]], list[float]]]:
    """Return title, perplexity gains by model, and the gain that counts, for each fraction of each group (Figure 3).

    The gain that counts, threshold · exp f(c, c), is equal for all models of a group.
    """
    found, only = {}, len(results["groups"]) == 1
    for group in results["groups"]:
        models = [model for model in results["models"] if model["group"] == group["name"]]
        for r in (str(float(fraction)) for fraction in results["fractions"]):
            title = f"Gain of more context, hardest {float(r):.0%} of positions"
            curves = {model["name"]: model["recl"][r]["perplexity_gains"] for model in models}
            needed = [results["threshold"] * p for p in models[0]["recl"][r]["perplexities"]]
            stem = f"gains_r{r}" if only else f"gains_{group['name']}_r{r}"
            found[stem] = (title if only else f"{title}, {group['name']}", curves, needed)
    return found
