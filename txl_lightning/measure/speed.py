"""`txl speed`: Table 9 on this machine, a vanilla model's sliding window against state reuse."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from txl_lightning.config.architecture import TransformerXLConfig
from txl_lightning.data.published_corpora import CUTOFFS, PUBLISHED
from txl_lightning.errors import OptionError, require
from txl_lightning.files import write_json
from txl_lightning.measure.commands import (
    check_at_least_one,
    check_common_options,
    chosen_device,
    log_panels,
    write_markdown,
)
from txl_lightning.measure.options import SpeedOptions
from txl_lightning.model.inference.cached import CachedTransformerXL, can_cache
from txl_lightning.model.inference.sliding_window import SlidingWindow
from txl_lightning.model.language_model import LanguageModel
from txl_lightning.model.transformer_xl import TransformerXL
from txl_lightning.reporting.canvas import line_figure
from txl_lightning.reporting.machine import processor
from txl_lightning.runs.metrics import loss_unit
from txl_lightning.runs.models import require_room
from txl_lightning.runs.threads_and_precision import set_threads
from txl_lightning.runs.trained import load_trained

LEVELS = {"char": "characters", "word": "words"}
VOCABULARIES = {"char": "enwik8, newlines dropped", "word": "wikitext-103"}  # of the paper
SIZES = ("n_layer", "d_model", "n_head", "d_inner")
SCHEMES = {
    "vanilla": "vanilla, sliding window",
    "hidden": "state reuse, hidden states (paper)",
    "cached": "state reuse, cached keys and values",
}
RATIOS = ("vanilla/hidden", "vanilla/cached")
HEADER = ["level", "attention length", "vanilla, ms per token", "hidden states", "cached"]
HEADER += ["vanilla / hidden states (min–max)", "vanilla / cached (min–max)"]
MIN_ROUNDS = 3
TURN_SECONDS, MOST_SEGMENTS = 0.3, 64  # a turn is one segment, or as many as take TURN_SECONDS
TEXT_LEN = 1 << 14
RANK_OFFSET = 2.7  # Mandelbrot's correction of Zipf's law for the most frequent words

Show = Callable[[str], None]
print_now: Show = partial(print, flush=True)


def run(options: SpeedOptions, directory: Path, show: Show = print_now) -> list[str]:
    """Time all schemes; write `speed.json`, `speed.md` and the figure.

    Args:
        options: options of the command.
        directory: folder for the files.
        show: function that prints a line of progress.

    Returns:
        Lines to print: the table and its notes.

    Raises:
        UserError: an option or the checkpoint is not usable.
    """
    _check_options(options)
    device = chosen_device(options.accelerator)
    set_threads(options.num_threads)
    started = time.perf_counter()
    torch.manual_seed(options.seed)
    schemes, sizes = {}, {}
    for level, model in _models(options).items():
        vanilla = vanilla_of(model)
        names = ("vocab_size", *SIZES, "d_head", "encoding", "cutoffs", "div_val")
        n_parameters = sum(p.numel() for p in model.parameters())
        sizes[level] = {**{name: getattr(model.config, name) for name in names}, "parameters": n_parameters}
        text_1n = random_text(len(model.softmax.bias), TEXT_LEN, level == "word", options.seed).to(device)
        for length in sorted(options.attention_lengths):
            given = (model.to(device), vanilla.to(device), length, options.segment_len, text_1n)
            schemes[level, length] = make_schemes(*given)
    every = [scheme for named in schemes.values() for scheme in named.values()]
    rounds = run_rounds(every, options.rounds, started + options.budget_seconds, show)
    results: dict[str, Any] = {
        "checkpoint": options.checkpoint,
        "models": sizes,
        "segment_len": options.segment_len,
        "rounds": rounds,
        "results": [{"level": key[0], "attention_len": key[1], **summary(of)} for key, of in schemes.items()],
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
    check_at_least_one(options, *SIZES, "segment_len", "rounds")
    known = bool(options.levels) and set(options.levels) <= set(LEVELS)
    require(known, "levels", options.levels, f"must be of {', '.join(LEVELS)}, at least one")
    lengths = options.attention_lengths
    require(bool(lengths) and min(lengths) >= 1, "attention_lengths", lengths, "must be integers >= 1, at least one")
    allowed = f"must divide d_model, which is {options.d_model}"
    require(options.d_model % options.n_head == 0, "n_head", options.n_head, allowed)
    for name in ("levels", *SIZES) if options.checkpoint else ():
        value = getattr(options, name)
        require(value == getattr(SpeedOptions(), name), name, value, "is set by the checkpoint: leave it out")


def _models(options: SpeedOptions) -> dict[str, TransformerXL]:
    """Return the model of the checkpoint by its level, or one of random weights and the paper's vocabulary for each."""
    if options.checkpoint:
        trained = load_trained(options.checkpoint)
        if not can_cache(trained.model) or trained.model.config.kind.absolute:
            allowed = "must be a Transformer-XL with an encoding of distances and an ordinary memory"
            raise OptionError("checkpoint", options.checkpoint, f"is {trained.config.model.name}; {allowed}")
        return {"word" if loss_unit(trained.vocabulary.level) == "ppl" else "char": trained.model}
    models = {}
    for level in options.levels:
        vocab_size, cutoffs = PUBLISHED[VOCABULARIES[level]]["vocabulary"], CUTOFFS.get(VOCABULARIES[level], ())
        sizes: dict[str, Any] = {name: getattr(options, name) for name in SIZES}
        sizes["d_head"] = options.d_model // options.n_head
        config = TransformerXLConfig(vocab_size=vocab_size, cutoffs=cutoffs, **sizes)
        require_room(config, without="model.")
        models[level] = TransformerXL(config).eval()
    return models


def vanilla_of(model: TransformerXL) -> TransformerXL:
    """Return the vanilla counterpart of a Transformer-XL: its sizes and weights, absolute sinusoids, no memory."""
    without: dict[str, Any] = {"mem_len": 0, "memory_reset": "never"}
    vanilla = TransformerXL(replace(model.config, encoding="absolute", terms="a", **without))
    vanilla.to(model.embedding.tables[0])
    shapes, weights = {name: x.shape for name, x in vanilla.state_dict().items()}, model.state_dict()
    vanilla.load_state_dict({k: x for k, x in weights.items() if shapes.get(k) == x.shape}, strict=False)
    return vanilla.eval()


def random_text(vocab_size: int, n: int, by_rank: bool, seed: int) -> Tensor:
    """Return random tokens [1, n]: uniform, or `by_rank` with P(r) ∝ 1 / (r + 2.7), like words ordered by frequency.

    The tokens affect times only in the adaptive softmax, which skips clusters without targets.
    """
    generator = torch.Generator().manual_seed(seed)
    if not by_rank:
        return torch.randint(vocab_size, (1, n), generator=generator)
    weights = 1 / (torch.arange(vocab_size, dtype=torch.float64) + RANK_OFFSET)
    return torch.multinomial(weights, n, replacement=True, generator=generator)[None]


@dataclass
class TimedScheme:
    """Model that reads a text in a loop, segment by segment, with its state carried along, and is timed.

    Args:
        model: model to time.
        text_1n: tokens, read in a loop.
        segment_len: tokens in a segment.
        state: state after the last segment.
        position: position of the next token to read.
        segments: segments in a turn.
        seconds: seconds per token in every recorded turn.
    """

    model: LanguageModel
    text_1n: Tensor
    segment_len: int
    state: Any = None
    position: int = 0
    segments: int = 1
    seconds: list[float] = field(default_factory=list)

    @torch.no_grad()
    def read(self) -> Tensor:
        """Return the losses of the next segment, [1, segment_len], in nats."""
        places = torch.arange(self.position, self.position + self.segment_len + 1, device=self.text_1n.device)
        tokens_1T = self.text_1n[:, places % self.text_1n.shape[1]]
        self.position += self.segment_len
        nll_1T, self.state = self.model.score(tokens_1T[:, :-1], tokens_1T[:, 1:], self.state)
        return nll_1T

    def turn(self) -> float:
        """Return seconds per token over one turn."""
        if self.segment_len > 1:
            self.read()  # untimed: refills the CPU cache after the turn of another scheme
        self._finish()
        started = time.perf_counter()
        for _ in range(self.segments):
            self.read()
        self._finish()
        return (time.perf_counter() - started) / (self.segments * self.segment_len)

    def warm_up(self) -> None:
        """Take an unrecorded turn and choose the number of segments of later turns."""
        self.read()  # the first call of a product on a GPU loads its kernel
        self.segments = max(1, min(MOST_SEGMENTS, round(TURN_SECONDS / (self.turn() * self.segment_len))))

    def _finish(self) -> None:
        if self.text_1n.is_cuda:
            torch.cuda.synchronize()


def make_schemes(
    model: TransformerXL, vanilla: TransformerXL, attention_len: int, segment_len: int, text_1n: Tensor
) -> dict[str, TimedScheme]:
    """Return the three schemes, each with the full attention length L from its first token on.

        vanilla        a forward pass over the L tokens before each prediction, softmax of the last position only
        hidden         segments with L hidden states as memory, the paper's scheme
        cached         segments with L keys and values as memory

    Every query attends to exactly L keys (`same_length`), its own included. The memories start as zeros, which
    does not change the times, and are never reset.
    """
    start = {"memory_start": "zeros", "memory_reset": "never", "extra_key": False}
    lengths = {"mem_len": attention_len, "same_length": True, "ext_len": 0, **start}
    window_1L = text_1n[:, torch.arange(attention_len, device=text_1n.device) % text_1n.shape[1]]
    schemes = {}
    sliding = SlidingWindow(vanilla, attention_len)
    schemes["vanilla"] = TimedScheme(sliding, text_1n, 1, state=window_1L, position=attention_len)
    schemes["hidden"] = TimedScheme(model.with_lengths(**lengths), text_1n, segment_len)
    schemes["cached"] = TimedScheme(CachedTransformerXL(model, **lengths), text_1n, segment_len)
    return schemes


def run_rounds(schemes: list[TimedScheme], rounds: int, deadline: float, show: Show) -> int:
    """Record a turn of every scheme in every round, in an order that reverses; return the number of rounds.

    Stops, after at least 3 rounds, when another round would end after the deadline.
    """
    for scheme in schemes:
        scheme.warm_up()
    longest, order = 0.0, list(schemes)
    for i in range(rounds):
        before = time.perf_counter()
        if i >= MIN_ROUNDS and before + longest > deadline:
            show(f"budget_seconds: another round would not fit; {i} of {rounds} rounds measured")
            return i
        for scheme in order:
            scheme.seconds.append(scheme.turn())
        order.reverse()
        taken = time.perf_counter() - before
        longest = max(longest, taken)
        show(f"round {i + 1} of {rounds}: {taken:.1f} s; at most {(rounds - i - 1) * longest:.0f} s left")
    return rounds


def summary(schemes: dict[str, TimedScheme]) -> dict[str, Any]:
    """Return the times of a line of Table 9, and ratios within the rounds."""

    def spread(values: list[float]) -> dict[str, Any]:
        return {"median": median(values), "min": min(values), "max": max(values), "rounds": values}

    rounds = {name: scheme.seconds for name, scheme in schemes.items()}
    ratios = {name: [a / b for a, b in zip(*map(rounds.get, name.split("/")), strict=True)] for name in RATIOS}
    return {
        "seconds_per_token": {name: spread(values) for name, values in rounds.items()},
        "ratios": {name: spread(values) for name, values in ratios.items()},
    }


def write_report(results: dict[str, Any], options: SpeedOptions, directory: Path) -> list[str]:
    """Write `speed.md` and `speed.svg|png`.

    Args:
        results: contents of `speed.json`.
        options: options of the command; logger `wandb` gets the table, the figure, and the ratios as line series.
        directory: folder for the files.

    Returns:
        Lines to print: the table and its notes.
    """
    machine, table = results["machine"], (HEADER, [_row(result) for result in results["results"]])
    models = []
    for level, sizes in results["models"].items():
        listed = ", ".join(f"{name} {value}" for name, value in sizes.items())
        models.append(f"{LEVELS[level]}: {listed}; the vanilla model has equal sizes and absolute positions.")
    lines = write_markdown(
        directory / "speed.md",
        table,
        "",
        "vanilla: a forward pass over the attention length for every token, softmax of its last position only. "
        "State reuse: segments of "
        f"{results['segment_len']} tokens, with a memory of the attention length. One stream of random tokens; every "
        "query attends to exactly the attention length.",
        *models,
        f"Medians of {results['rounds']} rounds, ratios within a round; {results['seconds']:,.0f} s in all. "
        f"{machine['accelerator'] or machine['processor']}, threads: {machine['threads']}, torch {machine['torch']}.",
    )
    times, ratios = {}, {}
    for level in results["models"]:
        measured = [result for result in results["results"] if result["level"] == level]
        lengths = [result["attention_len"] for result in measured]
        for name, label in SCHEMES.items():
            milliseconds = [1000 * result["seconds_per_token"][name]["median"] for result in measured]
            times[f"{LEVELS[level]}: {label}"] = [(lengths, milliseconds)]
        curves = {name: [result["ratios"][name]["median"] for result in measured] for name in RATIOS}
        ratios[f"ratios_{level}"] = (lengths, curves, "attention length", f"{LEVELS[level]}: how many times slower")
    title = "Time per token by attention length"
    line_figure(directory / "speed", times, "attention length (tokens)", "milliseconds per token", title, log_y=True)
    log_panels(options, directory, "speed", {"machine": machine}, {"table": table}, ratios, {"speed": title})
    return lines


def _row(result: dict[str, Any]) -> list[str]:
    """Return a row of the table: milliseconds per token of every scheme, and ratios of vanilla to state reuse."""
    times = [float(f"{1000 * result['seconds_per_token'][name]['median']:.3g}") for name in SCHEMES]
    return [
        LEVELS[result["level"]],
        f"{result['attention_len']:,}",
        *(f"{time:,.0f}" if time >= 100 else f"{time:g}" for time in times),
        *("{median:,.0f}× ({min:,.0f}–{max:,.0f})".format(**result["ratios"][name]) for name in RATIOS),
    ]
