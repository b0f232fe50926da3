"""Report of `txl recl`, made from `recl.json`: Table 8, Figures 3 and 4, in files and in Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from txl_lightning.config.schemas import LoggerConfig
from txl_lightning.files import write_text
from txl_lightning.reporting.canvas import looks, new_figure, plain_text, save_with_legend
from txl_lightning.reporting.tables import escape, latex_table, markdown_table
from txl_lightning.runs.metrics import unit_name

MOST_TICKS = 12
LAST_DOUBLINGS = 3  # in the table
SIZE = (5.4, 4.4)  # inches; letters can be read at the width of a phone


def write_report(
    results: dict[str, Any], directory: Path, logger: LoggerConfig, config: dict[str, Any] | None = None
) -> list[str]:
    """Write the table and the figures.

        recl.md, recl.tex        losses and gains by context, Table 8, and comparisons
        gains_*.svg|png          Figure 3, a file for each r and group
        contexts.svg|png         Figure 4
        differences.svg|png      loss minus that of the first model, if there are several

    Args:
        results: contents of `recl.json`.
        directory: folder for the files.
        logger: logger options; `wandb` gets the tables and the curves as panels.
        config: configuration to show beside the W&B run.

    Returns:
        Lines to print: the tables and their notes.
    """
    alone, table_8 = _gains(results), _table_8(results)
    grouped = "; ".join(", ".join(group["models"]) for group in results["groups"])
    lines = ["Loss by context and its gain, without a group:", "", *markdown_table(*alone).splitlines()]
    lines += ["", f"RECL in the group of: {escape(grouped)}", "", *markdown_table(*table_8).splitlines()]
    lines += ["", *map(escape, _notes(results))]
    write_text(directory / "recl.md", "\n".join([*lines, *_comparisons(results)]) + "\n")
    write_text(directory / "recl.tex", f"{latex_table(*alone)}\n{latex_table(*table_8)}")
    by_file = _gains_by_file(results)
    for stem, of_file in by_file.items():
        gain_figure(directory / stem, results, *of_file)
    context_figure(directory / "contexts", results)
    if len(results["models"]) > 1:
        difference_figure(directory / "differences", results)
    if logger.name == "wandb":
        from txl_lightning.reporting.wandb_panels import log_line_series, log_table, wandb_run

        with wandb_run(directory, logger, "recl", {**(config or {}), "corpus": results["corpus"]}) as run:
            log_table(run, "recl/gains", *alone)
            log_table(run, "recl/table", *table_8)
            for stem, (title, curves, needed) in by_file.items():
                series = {**curves, "needed for a longer RECL": needed}
                log_line_series(run, f"recl/{stem}", results["contexts"][:-1], series, "c", title)
            unit, title = results["unit"], f"{unit_name(results['corpus']['level'])} by context"
            means = {model["name"]: model[unit] for model in results["models"]}
            log_line_series(run, f"recl/{unit}", results["contexts"], means, "context", title)
    return lines


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
    axes.set_ylabel(unit_name(results["corpus"]["level"]))
    axes.set_title("Loss by context, all positions")
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
        _draw(axes, found["minus"], contexts, mean, look, (mean - error, mean + error))
    _context_axis(axes, results)
    axes.set_ylabel("difference of the loss (nats)")
    axes.set_title(plain_text(f"Loss minus that of {first} (± standard error)"))
    save_with_legend(figure, axes, stem)


def _draw(axes: Axes, name: str, x: Any, y: Any, look: Mapping[str, Any], band: tuple[Any, Any] | None = None) -> None:
    axes.plot(x, y, **look, markersize=3.5, linewidth=1.4, label=plain_text(name))
    if band is not None:
        axes.fill_between(x, *band, color=look["color"], alpha=0.12, linewidth=0)


def _context_axis(axes: Axes, results: dict[str, Any]) -> None:
    """Label the contexts, on a logarithmic axis if the grid is uneven."""
    ticks = results["contexts"][:: -(-len(results["contexts"]) // MOST_TICKS)]
    slant: dict[str, Any] = {}
    if results["step"] is None:
        axes.set_xscale("log", base=2)
        slant = {"rotation": 40, "ha": "right"}
    axes.set_xticks(ticks, [str(c) for c in ticks], **slant)
    axes.set_xlabel(f"context ({results['context_unit']}s)")


def _fractions(results: dict[str, Any]) -> list[str]:
    return [str(float(r)) for r in results["fractions"]]


def _hardest(fraction: str) -> str:
    return f"hardest {float(fraction):.0%} of positions"


def _gains(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows that need no group: losses at both ends of the grid, and what more context gains."""
    unit, context_unit, contexts = results["unit"], results["context_unit"], results["contexts"]
    chain = {contexts[0] << k for k in range(32)}
    rows = []
    for model in results["models"]:
        limit = f"{model['limit']} tokens" if model["limit"] and context_unit == "byte" else str(model["limit"] or "–")
        losses = list(zip(model[unit], model[f"{unit}_standard_error"], strict=True))
        doublings = [found for found in model["doublings"] if found["from"] in chain][-LAST_DOUBLINGS:]
        cells = [f"{loss:.3f} ± {error:.3f}" for loss, error in (losses[0], losses[-1])]
        cells += [f"{found['bits']:.3f} ± {found['standard_error']:.3f}" for found in doublings]
        rows.append([model["name"], model["kind"], limit, *cells, str(model["within_1_percent"])])
    header = ["model", "kind", "sees at most", *(f"{unit} at {c} {context_unit}s" for c in (contexts[0], contexts[-1]))]
    header += [f"bits {found['from']} → {found['to']}" for found in doublings]
    return [*header, "within 1 %"], rows


def _table_8(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows: RECL with interval, and guarded RECL, by model."""
    fractions, several = _fractions(results), len(results["groups"]) > 1
    lengths = [*(f"RECL r = {r}" for r in fractions), *(f"guarded r = {r}" for r in fractions)]
    rows = []
    for model in results["models"]:
        cells = [_with_interval(model["recl"][r], bool(results["bootstrap"])) for r in fractions]
        cells += [_bounded(model["recl"][r], "guarded", "guarded_at_least") for r in fractions]
        rows.append([model["name"], *([model["group"]] if several else []), *cells])
    return ["model", *(["group"] if several else []), *lengths], rows


def _with_interval(length: dict[str, Any], with_interval: bool) -> str:
    """Format a RECL as `128 [96, 160]`, with ≥ before lower bounds."""
    if not with_interval:
        return _bounded(length)
    return f"{_bounded(length)} [{length['low']}, {'≥ ' if length['high_at_least'] else ''}{length['high']}]"


def _notes(results: dict[str, Any]) -> list[str]:
    """Describe the measurement, its precision and the signs of the table."""
    unit, contexts, models = results["unit"], results["contexts"], results["models"]
    corpus, positions, longest = results["corpus"], results["positions"], f"{contexts[-1]} {results['context_unit']}s"
    largest = max(model[f"{unit}_standard_error"][-1] for model in models)
    begun = ", ".join(model["name"] for model in models if model["begin_of_text"] is not None)
    direct = ", ".join(model["name"] for model in models if model["scoring"] == "direct")
    key = {model["name"]: found for model in models if (found := model["key_tokens"])}
    shares = ", ".join(f"{name} {found['share']:.1%} ({found['share_of_rises']:.1%})" for name, found in key.items())
    a, b = results["key_contexts"]
    grid = f"in steps of {results['step']}" if results["step"] else "in steps from each context of the grid to the next"
    notes = {
        f"{positions['number']:,} positions of {corpus['name']} ({results['split']}) in {positions['blocks']} blocks "
        f"spread evenly over the text; contexts {contexts[0]} to {contexts[-1]} {grid}; a step "
        f"counts if its relative gain is at least {results['threshold']:.3g}. "
        f"Largest standard error at {longest}: {largest:.4f} {unit}.": True,
        f"Within 1 %: the first context whose loss is at most 1 % above that at {longest}. Sees at most: the positions "
        "that a model has or was trained with.": True,
        "Contexts are bytes of text, cut to whole tokens; losses are per byte of the pieces of text that all "
        "tokenizers have in common.": results["context_unit"] == "byte",
        f"{positions['cut']:,} positions have fewer than {longest} of context, because their document is shorter "
        "(documents=respect).": positions["cut"],
        f"A begin-of-text token is read before every window, beside its context: {begun}.": begun,
        f"In brackets: 95 % interval over {results['bootstrap']:,} resamples of the blocks. ≥: steps still counted at "
        f"{longest}, where the grid ends (max_context).": results["bootstrap"],
        "Guarded: a step must also lower the model's own mean loss, over all and over hard positions.": True,
        f"Key tokens, whose loss falls (rises) by more than {results['key_gain']:g} nats from {a} to {b} tokens: "
        f"{shares}.": key,
        f"Each context has windows of its own, because one pass is not exact: {direct}.": direct,
    }
    return [note for note, applies in notes.items() if applies]


def _gains_by_file(results: dict[str, Any]) -> dict[str, tuple[str, dict[str, list[float]], list[float]]]:
    """Return title, perplexity gains by model, and the gain that counts, for each fraction of each group (Figure 3).

    The gain that counts, threshold · exp f(c, c), is equal for all models of a group.
    """
    found = {}
    for group in results["groups"]:
        models = [model for model in results["models"] if model["group"] == group["name"]]
        only = len(results["groups"]) == 1
        for r in _fractions(results):
            title = f"Gain of more context, {_hardest(r)}"
            curves = {model["name"]: model["recl"][r]["perplexity_gains"] for model in models}
            needed = [results["threshold"] * p for p in models[0]["recl"][r]["perplexities"]]
            stem = f"gains_r{r}" if only else f"gains_{group['name']}_r{r}"
            found[stem] = (title if only else f"{title}, {group['name']}", curves, needed)
    return found


def _comparisons(results: dict[str, Any]) -> list[str]:
    """Return the tables of comparisons: differences, and groups of several models."""
    longest = f"{results['contexts'][-1]} {results['context_unit']}s"
    differences = [
        [f"{one['model']} − {one['minus']}", f"{one['nll'][-1]:+.4f} [{one['low'][-1]:+.4f}, {one['high'][-1]:+.4f}]"]
        for one in results["differences"]
    ]
    groups = []
    for group in results["groups"] if len(results["groups"]) > 1 else ():
        cells = [
            f"{'≥ ' if x['at_least'] else ''}{x['mean']:g} [{x['low']}, {x['high']}]" for x in group["recl"].values()
        ]
        groups.append([group["name"], str(len(group["models"])), *cells])
    means = [f"RECL r = {r}: mean [lowest, highest]" for r in _fractions(results)]
    lines: list[str] = []
    for title, header, rows in (
        ("Differences of the loss, paired by position", ["models", f"nats at {longest}, 95 % interval"], differences),
        ("Groups", ["group", "models", *means], groups),
    ):
        if rows:
            lines += ["", f"## {title}", "", *markdown_table(header, rows).splitlines()]
    return lines


def _bounded(length: dict[str, Any], value: str = "value", at_least: str = "at_least") -> str:
    return f"{'≥ ' if length[at_least] else ''}{length[value]}"
