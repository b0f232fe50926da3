"""`txl speed`: Table 9 on this machine, in rounds that time every scheme at every attention length."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from matplotlib.ticker import FuncFormatter

from txl_lightning.config.architecture import TransformerXLConfig
from txl_lightning.config.schemas import plain
from txl_lightning.data.benchmarks import CUTOFFS, PUBLISHED
from txl_lightning.errors import OptionError, require
from txl_lightning.files import write_json, write_text
from txl_lightning.measure.scoring.option_checks import check_at_least_one, check_common_options, chosen_device
from txl_lightning.measure.speed import TABLE_9, SpeedOptions
from txl_lightning.measure.speed.schemes import RATIOS, TimedScheme, make_schemes, random_text, vanilla_of
from txl_lightning.model.inference.cached import can_cache
from txl_lightning.model.transformer_xl import TransformerXL
from txl_lightning.reporting.canvas import COLOURS, MARKERS, new_figure, save_figure
from txl_lightning.reporting.machine import processor
from txl_lightning.reporting.tables import escape, markdown_table
from txl_lightning.runs.metrics import loss_unit
from txl_lightning.runs.models import require_room
from txl_lightning.runs.threads import set_threads
from txl_lightning.runs.trained import load_trained

LEVELS = {"char": "characters", "word": "words"}
VOCABULARIES = {"char": "enwik8, newlines dropped", "word": "wikitext-103"}  # of the paper
SET_BY_CHECKPOINT = ("levels", "n_layer", "d_model", "n_head", "d_inner")
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
MIN_ROUNDS = 3
TEXT_LEN = 1 << 14
SCHEMES = {
    "vanilla": "vanilla, sliding window",
    "vanilla_fused": "vanilla, fused attention",
    "hidden": "state reuse, hidden states (paper)",
    "cached": "state reuse, cached keys and values",
}
HEADER = ["level", "attention length", "vanilla, ms per token", "fused", "hidden states", "cached"]
HEADER += ["vanilla / hidden states (min–max)", "vanilla / cached (min–max)", "fused / cached", "paper"]

Show = Callable[[str], None]
print_now: Show = partial(print, flush=True)
Pair = tuple[TransformerXL, TransformerXL]  # a model and its vanilla counterpart
Schemes = dict[tuple[str, int], dict[str, TimedScheme]]  # by level and attention length, then by name


def run(options: SpeedOptions, directory: Path, show: Show = print_now) -> list[str]:
    """Time all schemes; write `speed.json`, `speed.md` and the figure.

    Args:
        options: options of the command.
        directory: folder for the files.
        show: function that prints a line of progress.

    Returns:
        Lines to print: the table and its notes.

    Raises:
        UserError: an option or the checkpoint is not usable, or the budget is too small for three rounds.
    """
    _check_options(options)
    device = chosen_device(options.accelerator)
    set_threads(options.num_threads)
    started = time.perf_counter()
    torch.manual_seed(options.seed)
    models = _checkpoint_model(options) if options.checkpoint else _random_models(options)
    pairs = {level: (model, vanilla_of(model, options.vanilla_n_layer)) for level, model in models.items()}
    sizes = {level: _sizes(*pair) for level, pair in pairs.items()}
    deadline = started + options.budget_seconds
    schemes = _warmed_up_schemes(pairs, options, device, deadline, show)
    rounds = run_rounds(schemes, options.rounds, deadline, show)
    results: dict[str, Any] = {
        "checkpoint": options.checkpoint,
        "models": sizes,
        "segment_len": options.segment_len,
        "batch_size": 1,
        "clock": options.clock,
        "rounds": rounds,
        "results": [_summary(*key, of_length) for key, of_length in schemes.items()],
        "machine": {
            "processor": processor(),
            "accelerator": torch.cuda.get_device_name() if device.type == "cuda" else None,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        },
        "seconds": round(time.perf_counter() - started, 2),
    }
    write_json(directory / "speed.json", results, allow_nan=False)
    return write_report(results, options, directory)


def _check_options(options: SpeedOptions) -> None:
    check_common_options(options)
    check_at_least_one(options, "n_layer", "d_model", "n_head", "d_inner", "vanilla_n_layer", "segment_len", "rounds")
    levels, lengths = options.levels, options.attention_lengths
    known = bool(levels) and set(levels) <= set(LEVELS)
    require(known, "levels", levels, f"must be of {', '.join(LEVELS)}, at least one")
    valid = bool(lengths) and min(lengths) >= 1
    require(valid, "attention_lengths", lengths, "must be integers >= 1, at least one")
    require(options.budget_seconds > 0, "budget_seconds", options.budget_seconds, "must be a number > 0")
    allowed = f"must divide d_model, which is {options.d_model}"
    require(options.d_model % options.n_head == 0, "n_head", options.n_head, allowed)
    require(options.clock in CLOCKS, "clock", options.clock, f"must be one of {', '.join(CLOCKS)}")
    alone = options.clock == "wall" or (options.num_threads == 1 and options.accelerator == "cpu")
    allowed = "needs num_threads=1 and accelerator=cpu (threads use CPU time even while they wait for each other)"
    require(alone, "clock", options.clock, allowed)
    for name in SET_BY_CHECKPOINT if options.checkpoint else ():
        value, default = getattr(options, name), getattr(SpeedOptions(), name)
        require(value == default, name, value, "must not be given with a checkpoint, which sets it")


def _random_models(options: SpeedOptions) -> dict[str, TransformerXL]:
    """Return a model with random weights for every level, with the paper's vocabularies."""
    sizes = {name: getattr(options, name) for name in ("n_layer", "d_model", "n_head", "d_inner")}
    models = {}
    for level in options.levels:
        corpus = VOCABULARIES[level]
        vocab_size = PUBLISHED[corpus].vocabulary
        assert vocab_size is not None
        d_head, cutoffs = options.d_model // options.n_head, CUTOFFS.get(corpus, ())
        config = TransformerXLConfig(vocab_size=vocab_size, d_head=d_head, cutoffs=cutoffs, **sizes)
        require_room(config, without="model.")
        models[level] = TransformerXL(config).eval()
    return models


def _checkpoint_model(options: SpeedOptions) -> dict[str, TransformerXL]:
    """Return the model of the checkpoint, at its own level.

    Raises:
        OptionError: the checkpoint cannot be read, or its model has no keys and values that can be cached.
    """
    trained = load_trained(options.checkpoint or "")
    model, name = trained.model, trained.config.model.name
    if not can_cache(model) or model.config.kind.absolute:
        allowed = f"is {name}; must be a Transformer-XL with an encoding of distances, cached (no compressed memory or "
        allowed += "memory tokens)"
        raise OptionError("checkpoint", options.checkpoint, allowed)
    return {"word" if loss_unit(trained.vocabulary.level) == "ppl" else "char": model}


def _sizes(model: TransformerXL, vanilla: TransformerXL) -> dict[str, Any]:
    """Return the sizes of a model and its vanilla counterpart, as `speed.json` states them."""
    names = ("vocab_size", "n_layer", "d_model", "n_head", "d_head", "d_inner", "encoding", "cutoffs", "div_val")
    return {
        **{name: getattr(model.config, name) for name in names},
        "parameters": sum(p.numel() for p in model.parameters()),
        "vanilla_n_layer": vanilla.config.n_layer,
        "vanilla_encoding": vanilla.config.encoding,
    }


def _warmed_up_schemes(
    pairs: dict[str, Pair], options: SpeedOptions, device: torch.device, deadline: float, show: Show
) -> Schemes:
    """Make the schemes of all levels and lengths, and give each an unrecorded turn.

    Raises:
        OptionError: `budget_seconds` is too little for the minimum of rounds.
    """
    fewest = min(MIN_ROUNDS, options.rounds)
    schemes: Schemes = {}
    round_seconds = 0.0
    for level, (model, vanilla) in pairs.items():
        text_1n = random_text(len(model.softmax.bias), TEXT_LEN, level == "word", options.seed).to(device)
        for length in sorted(options.attention_lengths):
            named = make_schemes(model.to(device), vanilla.to(device), length, options.segment_len, text_1n)
            schemes[level, length] = named
            turns_seconds = 0.0
            for scheme in named.values():
                scheme.clock = CLOCKS[options.clock]
                turns_seconds += scheme.warm_up()
            round_seconds += turns_seconds
            show(f"{level}, attention length {length:,}: {turns_seconds:.1f} s per round")
            left = deadline - time.perf_counter()
            needed = options.budget_seconds - left + fewest * round_seconds
            allowed = f"is too little for {fewest} rounds, which need {needed:.0f} s or more on this machine"
            require(fewest * round_seconds <= left, "budget_seconds", f"{options.budget_seconds:g}", allowed)
    show(f"{options.rounds} rounds of about {round_seconds:.0f} s, or as many as fit into {left:.0f} s")
    return schemes


def run_rounds(schemes: Schemes, rounds: int, deadline: float, show: Show) -> int:
    """Record a turn of every scheme in every round, in an order that reverses; return the number of rounds.

    Stops, after at least 3 rounds, when another round would end after the deadline.
    """
    turns = [scheme for named in schemes.values() for scheme in named.values()]
    longest = 0.0
    for i in range(rounds):
        before = time.perf_counter()
        if i >= MIN_ROUNDS and before + longest > deadline:
            show(f"budget_seconds: another round would not fit; {i} of {rounds} rounds measured")
            return i
        for scheme in turns:
            scheme.seconds.append(scheme.turn())
        turns.reverse()
        taken = time.perf_counter() - before
        longest = max(longest, taken)
        show(f"round {i + 1} of {rounds}: {taken:.1f} s; about {(rounds - i - 1) * taken:.0f} s left")
    return rounds


def _summary(level: str, length: int, schemes: dict[str, TimedScheme]) -> dict[str, Any]:
    """Return one line of Table 9: times, and ratios within the rounds."""
    rounds = {name: scheme.seconds for name, scheme in schemes.items()}
    tokens = {name: len(scheme.seconds) * scheme.tokens for name, scheme in schemes.items()}
    ratios = {name: [a / b for a, b in zip(*map(rounds.get, name.split("/")), strict=True)] for name in RATIOS}
    return {
        "level": level,
        "attention_len": length,
        "seconds_per_token": {
            name: {"tokens": tokens[name], **_spread(values), "rounds": values} for name, values in rounds.items()
        },
        "ratios": {name: _spread(values) for name, values in ratios.items()},
        "paper": TABLE_9.get(length) if level == "char" else None,
    }


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": median(values), "min": min(values), "max": max(values)}


def write_report(results: dict[str, Any], options: SpeedOptions, directory: Path) -> list[str]:
    """Write `speed.md` and `speed.svg|png`.

    Args:
        results: contents of `speed.json`.
        options: options of the command; logger `wandb` gets the table, the figure, and the ratios as line series.
        directory: folder for the files.

    Returns:
        Lines to print: the table and its notes.
    """
    rows = [_row(result) for result in results["results"]]
    lines = [*markdown_table(HEADER, rows).splitlines(), "", *map(escape, _notes(results))]
    write_text(directory / "speed.md", "\n".join(lines) + "\n")
    title = "Time per token by attention length; ×: vanilla / cached"
    by_level = {level: [r for r in results["results"] if r["level"] == level] for level in results["models"]}
    sizes = {level: f"{model['vocab_size']:,}" for level, model in results["models"].items()}
    panels = {f"{LEVELS[level]} (V = {sizes[level]})": measured for level, measured in by_level.items()}
    speed_figure(directory / "speed", panels, title)
    if options.logger.name == "wandb":
        from txl_lightning.reporting.wandb_panels import log_image, log_line_series, log_table, wandb_run

        known = {**plain(options), "machine": results["machine"]}
        with wandb_run(directory, options.logger, "speed", known) as run:
            log_table(run, "speed/table", HEADER, rows)
            for level, measured in by_level.items():
                lengths = [result["attention_len"] for result in measured]
                curves = {name: [result["ratios"][name]["median"] for result in measured] for name in RATIOS}
                if all(result["paper"] for result in measured):
                    curves["paper"] = [result["paper"] for result in measured]
                panel_title = f"{LEVELS[level]}: how many times slower"
                log_line_series(run, f"speed/ratios_{level}", lengths, curves, "attention length", panel_title)
            log_image(run, "speed/times", directory / "speed.png", title)
    return lines


def _row(result: dict[str, Any]) -> list[str]:
    """Return a row of the table: milliseconds per token of every scheme, and ratios of vanilla to state reuse."""
    ratios = result["ratios"]
    times = [float(f"{1000 * result['seconds_per_token'][name]['median']:.3g}") for name in SCHEMES]
    return [
        LEVELS[result["level"]],
        f"{result['attention_len']:,}",
        *(f"{time:,.0f}" if time >= 100 else f"{time:g}" for time in times),
        *(
            "{median:,.0f}× ({min:,.0f}–{max:,.0f})".format(**ratios[f"vanilla/{name}"])
            for name in ("hidden", "cached")
        ),
        f"{ratios['vanilla_fused/cached']['median']:,.0f}×",
        f"{result['paper']:,}×" if result["paper"] else "–",
    ]


def _notes(results: dict[str, Any]) -> list[str]:
    """Describe the schemes, the models, the measurement and the machine."""
    machine = results["machine"]
    lines = [
        "vanilla: a forward pass over the attention length for every token, softmax of its last position only. fused: "
        "vanilla with attention that never holds all scores, its fastest form here. State reuse: segments of "
        f"{results['segment_len']} tokens, with a memory of the attention length: hidden states, as in the paper, or "
        "cached keys and values. One stream; every query attends to exactly the attention length."
    ]
    for level, sizes in results["models"].items():
        listed = ", ".join(
            f"{name} {value:,}" if name == "parameters" else f"{name} {value}" for name, value in sizes.items()
        )
        lines.append(f"{LEVELS[level]}: {listed}; otherwise the vanilla model has equal sizes and weights.")
    measured = []
    for name in SCHEMES:
        counts = sorted({result["seconds_per_token"][name]["tokens"] for result in results["results"]})
        measured.append(f"{name} {' to '.join(f'{n:,}' for n in dict.fromkeys((counts[0], counts[-1])))}")
    lines.append(
        f"Medians of {results['rounds']} rounds, ratios within a round; clock={results['clock']}. Random tokens "
        f"measured at each length: {', '.join(measured)}. {machine['accelerator'] or machine['processor']}, "
        f"threads: {machine['threads']}, torch {machine['torch']}; {results['seconds']:,.0f} s in all."
    )
    return [*lines, "paper: Table 9, measured on a GPU with models of other sizes; hidden states are reused."]


def speed_figure(stem: Path, panels: dict[str, list[dict[str, Any]]], title: str) -> None:
    """Draw a panel for every level on a common logarithmic axis of milliseconds, as SVG and PNG.

    The number below each point of `cached` is the time of `vanilla` over that of `cached`.

    Args:
        stem: path of the files without suffix.
        panels: by title, entries of `results` in `speed.json`, one for every attention length.
        title: title of the figure.
    """
    figure = new_figure(1.6 + 4.2 * len(panels), 4.6)
    all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (panel, measured) in zip(all_axes, panels.items(), strict=True):
        lengths = [result["attention_len"] for result in measured]
        for (name, label), colour, marker in zip(SCHEMES.items(), COLOURS, MARKERS, strict=False):
            middle, low, high = (
                [1000 * result["seconds_per_token"][name][key] for result in measured]
                for key in ("median", "min", "max")
            )
            axes.plot(lengths, middle, color=colour, marker=marker, markersize=4.5, linewidth=1.4, label=label)
            axes.fill_between(lengths, low, high, color=colour, alpha=0.15, linewidth=0)
        for result in measured:
            length, times = result["attention_len"], result["seconds_per_token"]
            upper, lower = (1000 * times[name]["median"] for name in ("vanilla", "cached"))
            ratio = f"{result['ratios']['vanilla/cached']['median']:,.0f}×"
            axes.annotate(ratio, (length, lower), (0, -8), textcoords="offset points", ha="center", va="top")
            axes.plot([length] * 2, [upper, lower], color="0.6", linewidth=0.8, linestyle=":", zorder=0)
        axes.set(yscale="log", xlabel="attention length (tokens)", title=panel)
        axes.set_xticks(lengths)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axes.margins(x=0.12, y=0.14)
        axes.grid(alpha=0.3)
    all_axes[0].set_ylabel("milliseconds per token")
    figure.suptitle(title)
    figure.legend(*all_axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    save_figure(figure, stem)
