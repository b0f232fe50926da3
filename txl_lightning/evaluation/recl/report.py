"""Report of `txl recl`, made from `recl.json`: Table 8, Figures 3 and 4, in files and in Weights & Biases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from txl_lightning.config.schemas import LoggerConfig
from txl_lightning.evaluation.recl.figures import ablation_figure, context_figure, gain_figure, position_figure
from txl_lightning.evaluation.scoring.standard_errors import errors_by_unit, unit_name
from txl_lightning.files import write_text
from txl_lightning.reporting.canvas import line_figure
from txl_lightning.reporting.tables import latex_table, markdown_table
from txl_lightning.runs.metrics import loss_metrics

DEPENDENT = "positions, or the segments that are compressed, depend on the length that is read"


def write_report(
    results: dict[str, Any], directory: Path, logger: LoggerConfig, config: dict[str, Any] | None = None
) -> list[str]:
    """Write the table and the figures.

        recl.md, recl.tex        Table 8; in Markdown also comparisons
        gains_*.svg|png          Figure 3, a file for each r and group
        contexts.svg|png         Figure 4
        ablations.svg|png        increase of the loss without, or with altered, far context
        positions.svg|png        loss by position in a window
        recl_by_tokens_*.png     RECL during training, if there are several checkpoints of a folder

    Args:
        results: contents of `recl.json`.
        directory: folder for the files.
        logger: logger options; `wandb` gets the table and the curves as panels.
        config: configuration to show beside the W&B run.

    Returns:
        Lines to print: the table and its notes.
    """
    header, rows = _table_8(results)
    lines = [*markdown_table(header, rows).splitlines(), "", *_notes(results)]
    write_text(directory / "recl.md", "\n".join([*lines, *_comparisons(results)]) + "\n")
    write_text(directory / "recl.tex", latex_table(header, rows))
    contexts, unit, y_label = results["contexts"], results["unit"], unit_name(results["corpus"]["level"])
    by_file = _gains_by_file(results)
    for stem, (title, curves, needed) in by_file.items():
        gain_figure(directory / stem, contexts, curves, needed, title, results["context_unit"])
    losses = {m["name"]: (m[unit], m[f"{unit}_standard_error"]) for m in results["models"]}
    context_figure(
        directory / "contexts",
        contexts,
        losses,
        y_label,
        "Loss by context, all positions (± standard error)",
        results["context_unit"],
    )
    _context_use_figures(results, directory)
    for r in (str(float(r)) for r in results["fractions"]):
        if during_training := _by_tokens(results, r):
            path = directory / f"recl_by_tokens_r{r}.png"
            title = f"RECL during training, hardest {float(r):.0%} of positions"
            line_figure(path, during_training, "tokens trained", f"RECL ({results['context_unit']}s)", title)
    if logger.name == "wandb":
        from txl_lightning.reporting.wandb_panels import log_line_series, log_table, wandb_run

        with wandb_run(directory, logger, "recl", {**(config or {}), "corpus": results["corpus"]}) as run:
            log_table(run, "recl/table", header, rows)
            for stem, (title, curves, needed) in by_file.items():
                series = {**curves, "needed for a longer RECL": needed}
                log_line_series(run, f"recl/{stem}", contexts[:-1], series, "c", title)
            means = {name: mean for name, (mean, _) in losses.items()}
            log_line_series(run, f"recl/{unit}", contexts, means, "context", f"{y_label} by context")
    return lines


def _context_use_figures(results: dict[str, Any], directory: Path) -> None:
    """Draw the ablations and the loss by position, where they are measured."""
    altered = {model["name"]: model["far_context"] for model in results["models"] if model["far_context"]}
    if altered:
        contexts = next(iter(altered.values()))["contexts"]
        increases = {name: of_model["ablations"] for name, of_model in altered.items()}
        ablation_figure(directory / "ablations", contexts, increases, results["context_unit"])
    curves, unit = {}, results["unit"]
    for model in results["models"]:
        if found := model["loss_by_position"]:
            middles = [(first + last) / 2 for first, last in zip(found["first"], found["last"], strict=True)]
            mean = [loss_metrics(nll, results["corpus"]["level"])[unit] for nll in found["nll"]]
            pairs = zip(found["nll_standard_error"], found["nll"], strict=True)
            error = [errors_by_unit(*pair, results["corpus"]["level"])[unit] or 0.0 for pair in pairs]
            curves[model["name"]] = (middles, mean, error)
    if curves:
        trained = {model["name"]: model["trained_len"] for model in results["models"]}
        position_figure(directory / "positions", curves, trained, unit_name(results["corpus"]["level"]))


def _table_8(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows: RECL with interval by model and fraction, and the loss at the longest context."""
    unit, contexts = results["unit"], results["contexts"]
    fractions = [str(float(r)) for r in results["fractions"]]
    header = [
        "model",
        "kind",
        *(f"RECL r = {r}" for r in fractions),
        f"{unit} at {contexts[-1]} {results['context_unit']}s",
        "sees at most",
    ]
    rows = []
    unit_is_byte = results["context_unit"] == "byte"
    for model in results["models"]:
        cells = [_with_interval(model["recl"][r], bool(results["bootstrap"])) for r in fractions]
        loss = f"{model[unit][-1]:.3f} ± {model[f'{unit}_standard_error'][-1]:.3f}"
        limit = f"{model['limit']} tokens" if model["limit"] and unit_is_byte else str(model["limit"] or "–")
        rows.append([model["name"], model["kind"], *cells, loss, limit])
    return header, rows


def _with_interval(length: dict[str, Any], with_interval: bool) -> str:
    """Format a RECL as `128 [96, 160]`, with ≥ before lower bounds."""
    if not with_interval:
        return _bounded(length)
    return f"{_bounded(length)} [{length['low']}, {'≥ ' if length['high_at_least'] else ''}{length['high']}]"


def _notes(results: dict[str, Any]) -> list[str]:
    """Describe the measurement, its precision and the signs of the table."""
    unit, contexts, models = results["unit"], results["contexts"], results["models"]
    corpus, positions = results["corpus"], results["positions"]
    largest = max(model[f"{unit}_standard_error"][-1] for model in models)
    lines = [
        f"{positions['number']:,} positions of {corpus['name']} ({results['split']}) in {positions['blocks']} blocks "
        f"spread evenly over the text; contexts "
        f"{contexts[0]} to {contexts[-1]} in steps of {results['step']}; a step counts if its relative "
        f"gain is at least {results['threshold']:.3g}. "
        f"Largest standard error at {contexts[-1]} {results['context_unit']}s: {largest:.4f} {unit}.",
    ]
    if results["context_unit"] == "byte":
        lines.append(
            "Contexts are bytes of text, cut to whole tokens; losses are per byte of the pieces of text that all "
            "tokenizers have in common."
        )
    if begun := ", ".join(model["name"] for model in models if model["begin_of_text"] is not None):
        lines.append(f"A begin-of-text token is read before every window, beside its context: {begun}.")
    if results["bootstrap"]:
        lines.append(f"In brackets: 95 % interval over {results['bootstrap']:,} resamples of the blocks.")
    if any(length["at_least"] or length["high_at_least"] for model in models for length in model["recl"].values()):
        lines.append(
            f"≥: steps still counted at {contexts[-1]} {results['context_unit']}s, where the grid ends (max_context)."
        )
    if any(model["limit"] for model in models):
        lines.append("Sees at most: the positions that a model has or was trained with.")
    direct = ", ".join(model["name"] for model in models if model["scoring"] == "direct")
    if direct:
        lines.append(f"Each context has windows of its own, as {DEPENDENT}: {direct}.")
    changed = {model["name"]: found for model in models if (found := model["float32_difference"])}
    if changed:
        differences = ", ".join(f"{name} {found['nll']:+.5f}" for name, found in changed.items())
        where = f"the first {next(iter(changed.values()))['positions']:,} positions, all contexts"
        lines.append(f"{results['precision']}: nll beside float32 on {where}: {differences}.")
    scored = ", ".join(f"{model['name']} {model['positions_scored']:,}" for model in models)
    lines.append(f"Positions scored now (the others were in the store): {scored}.")
    return lines


def _gains_by_file(results: dict[str, Any]) -> dict[str, tuple[str, dict[str, list[float]], list[float]]]:
    """Return title, perplexity gains by model, and the gain that counts, for each fraction of each group (Figure 3).

    The gain that counts, threshold · exp f(c, c), is equal for all models of a group.
    """
    found = {}
    for group in results["groups"]:
        models = [model for model in results["models"] if model["group"] == group["name"]]
        only = len(results["groups"]) == 1
        for r in (str(float(r)) for r in results["fractions"]):
            title = f"Gain of more context, hardest {float(r):.0%} of positions"
            curves = {model["name"]: model["recl"][r]["perplexity_gains"] for model in models}
            needed = [results["threshold"] * p for p in models[0]["recl"][r]["perplexities"]]
            stem = f"gains_r{r}" if only else f"gains_{group['name']}_r{r}"
            found[stem] = (title if only else f"{title}, {group['name']}", curves, needed)
    return found


def _by_tokens(results: dict[str, Any], r: str) -> dict[str, list[tuple[list[int], list[int]]]]:
    """Return RECL by tokens of training, for every folder with several checkpoints in the group."""
    found: dict[str, list[tuple[int, int]]] = {}
    for model in results["models"]:
        if model["tokens_trained"] is not None:
            folder = Path(model["checkpoint"]).parent.as_posix()
            found.setdefault(folder, []).append((model["tokens_trained"], model["recl"][r]["value"]))
    curves = {folder: sorted(points) for folder, points in found.items() if len({t for t, _ in points}) > 1}
    return {folder: [([t for t, _ in points], [c for _, c in points])] for folder, points in curves.items()}


def _comparisons(results: dict[str, Any]) -> list[str]:
    """Return the tables of comparisons: differences, groups without one model, and groups of several models."""
    models, fractions = results["models"], [str(float(r)) for r in results["fractions"]]
    lines: list[str] = []

    def add(title: str, header: list[str], rows: list[list[str]]) -> None:
        if rows:
            lines.extend(["", f"## {title}", "", *markdown_table(header, rows).splitlines()])

    longest = f"{results['contexts'][-1]} {results['context_unit']}s"
    rows = [
        [f"{d['model']} − {d['minus']}", f"{d['nll'][-1]:+.4f} [{d['low'][-1]:+.4f}, {d['high'][-1]:+.4f}]"]
        for d in results["differences"]
    ]
    add("Differences of the loss, paired by position", ["models", f"nats at {longest}, 95 % interval"], rows)
    rows = [
        [model["name"], left_out, *(_bounded(model["recl"][r]["without"][left_out]) for r in fractions)]
        for model in models
        for left_out in model["recl"][fractions[0]]["without"]
    ]
    add("RECL in the group without one model", ["model", "without", *(f"RECL r = {r}" for r in fractions)], rows)
    rows = [
        [group["name"], str(len(group["models"])), *(_mean_and_range(group["recl"][r]) for r in fractions)]
        for group in results["groups"]
        if len(results["groups"]) > 1
    ]
    add("Groups", ["group", "models", *(f"RECL r = {r}: mean [lowest, highest]" for r in fractions)], rows)
    for model in models:
        if found := model["far_context"]:
            header = ["ablation", *(f"beyond {c}" for c in found["contexts"])]
            rows = [
                [ablation, *(f"{x:+.4f} [{a:+.4f}, {b:+.4f}]" for x, a, b in zip(*_ends(of_c), strict=True))]
                for ablation, of_c in found["ablations"].items()
            ]
            add(f"Far context of {model['name']}: increase of the loss at {longest}, nats", header, rows)
    return lines


def _ends(of_c: dict[str, list[float]]) -> tuple[list[float], list[float], list[float]]:
    return of_c["increase"], of_c["low"], of_c["high"]


def _bounded(length: dict[str, Any]) -> str:
    return f"{'≥ ' if length['at_least'] else ''}{length['value']}"


def _mean_and_range(recl: dict[str, Any]) -> str:
    return f"{'≥ ' if recl['at_least'] else ''}{recl['mean']:g} [{recl['low']}, {recl['high']}]"
