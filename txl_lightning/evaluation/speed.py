"""`txl speed`: Table 9 on this machine, a vanilla model's sliding window against state reuse."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.benchmark import Timer

from txl_lightning.config.architecture import TransformerXLConfig
from txl_lightning.data.published_corpora import PUBLISHED
from txl_lightning.errors import require
from txl_lightning.evaluation.commands import check_common_options, chosen_device, log_results
from txl_lightning.evaluation.hardware import set_threads
from txl_lightning.evaluation.losses import Array, with_progress
from txl_lightning.evaluation.models import require_room
from txl_lightning.evaluation.options import SpeedOptions
from txl_lightning.files import write_json, write_text
from txl_lightning.model.inference.cached import CachedTransformerXL
from txl_lightning.model.inference.sliding_window import SlidingWindow
from txl_lightning.model.language_model import LanguageModel
from txl_lightning.model.transformer_xl import TransformerXL
from txl_lightning.reporting import markdown_table, processor
from txl_lightning.reporting.canvas import line_figure

VOCABULARY = PUBLISHED["enwik8, newlines dropped"]["vocabulary"]  # the paper's
SIZES = ("n_layer", "d_model", "n_head", "d_inner")
SCHEMES = {
    "vanilla": "vanilla, sliding window",
    "hidden": "state reuse, hidden states (paper)",
    "cached": "state reuse, cached keys and values",
}
HEADER = (
    "attention length",
    "vanilla, ms per token",
    "hidden, ms per token",
    "cached, ms per token",
    "vanilla/hidden (min–max)",
    "vanilla/cached (min–max)",
)
TURN_SECONDS = 0.3  # a turn is one segment, or as many as take as long
TEXT_LEN = 1 << 14


def run(options: SpeedOptions, directory: Path) -> list[str]:
    """Time all schemes; write `speed.json`, `speed.md` and the figure.

    Args:
        options: the command's options.
        directory: folder for the files.

    Returns:
        Lines to print: the table and its notes.

    Raises:
        UserError: an option is not usable.
    """
    _check_options(options)
    device = chosen_device(options.accelerator)
    set_threads(options.num_threads)
    started = time.perf_counter()
    torch.manual_seed(options.seed)
    sizes = {name: getattr(options, name) for name in SIZES}
    d_head = options.d_model // options.n_head
    config = TransformerXLConfig(vocab_size=VOCABULARY, d_head=d_head, **sizes)
    require_room(config, without="model.")
    model = TransformerXL(config).to(device).eval()
    vanilla = vanilla_of(model)
    text_1n = torch.randint(VOCABULARY, (1, TEXT_LEN)).to(device)
    schemes_by_length = {}
    for length in sorted(options.attention_lengths):
        schemes = make_schemes(model, vanilla, length, options.segment_len, text_1n)
        schemes_by_length[length] = schemes
    run_rounds(schemes_by_length, options.rounds)
    machine: dict[str, Any] = {
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "accelerator": None,
    }
    if device.type == "cuda":
        machine["accelerator"] = torch.cuda.get_device_name()
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    results: dict[str, Any] = {
        "model": {**sizes, "vocab_size": VOCABULARY, "parameters": n_parameters},
        "segment_len": options.segment_len,
        "rounds": options.rounds,
        "results": [summary(length, schemes) for length, schemes in schemes_by_length.items()],
        "machine": machine,
        "seconds": round(time.perf_counter() - started, 2),
    }
    write_json(directory / "speed.json", results, allow_nan=False)
    lines = write_report(results, directory)
    log_results("speed", results, options, directory)
    return lines


def _check_options(options: SpeedOptions) -> None:
    check_common_options(options)
    most = f"must be at most {TEXT_LEN:,}, the length of the text"
    require(options.segment_len <= TEXT_LEN, "segment_len", options.segment_len, most)
    lengths = options.attention_lengths
    require(max(lengths) <= TEXT_LEN, "attention_lengths", lengths, most)
    divides = options.d_model % options.n_head == 0
    require(divides, "n_head", options.n_head, f"must divide d_model, which is {options.d_model}")


def vanilla_of(model: TransformerXL) -> TransformerXL:
    """Return a Transformer-XL's vanilla counterpart: its sizes, absolute sinusoids, no memory."""
    config = replace(model.config, encoding="absolute", terms="a", mem_len=0)
    return TransformerXL(config).to(model.embedding.tables[0]).eval()


@dataclass
class TimedScheme:
    """Model that reads a text in a loop, segment by segment, with its state carried along, and is timed.

    Args:
        model: model to time.
        text_1n: tokens, read in a loop.
        segment_len: tokens in a segment.
        state: state after the last segment.
        position: position of the next token to read.
        seconds: seconds per token in every recorded turn.
    """

    model: LanguageModel
    text_1n: Tensor
    segment_len: int
    state: Any = None
    position: int = 0
    seconds: list[float] = field(default_factory=list)

    @torch.no_grad()
    def read(self) -> Tensor:
        """Return the next segment's losses, [1, segment_len], in nats."""
        tokens_1T = looped(self.text_1n, self.position, self.segment_len + 1)
        self.position += self.segment_len
        nll_1T, self.state = self.model.score(
            tokens_1T[:, :-1],
            tokens_1T[:, 1:],
            self.state,
        )
        return nll_1T

    def turn(self) -> float:
        """Return seconds per token over one turn.

        The segments before the timed ones refill the CPU's cache after another scheme's turn.
        """
        timer = Timer(
            "read()",
            globals={"read": self.read},
            num_threads=torch.get_num_threads(),
        )
        return timer.blocked_autorange(min_run_time=TURN_SECONDS).median / self.segment_len


def looped(text_1n: Tensor, start: int, n_tokens: int) -> Tensor:
    """Return tokens of a text that begins again after its end."""
    places = torch.arange(start, start + n_tokens, device=text_1n.device)
    return text_1n[:, places % text_1n.shape[1]]


Schemes = dict[str, TimedScheme]


def make_schemes(
    model: TransformerXL,
    vanilla: TransformerXL,
    attention_len: int,
    segment_len: int,
    text_1n: Tensor,
) -> Schemes:
    """Return the three schemes, each with the full attention length L from its first token on.

        vanilla        a forward pass over the L tokens before each prediction, softmax of the last position only
        hidden         segments with L hidden states as memory, the paper's scheme
        cached         segments with L keys and values as memory

    Every query attends to exactly L keys (`same_length`), including itself. The memories start as zeros (the times are
    the same) and are never reset.
    """
    lengths: dict[str, Any] = {
        "mem_len": attention_len,
        "same_length": True,
        "ext_len": 0,
        "memory_start": "zeros",
        "memory_reset": "never",
        "extra_key": False,
    }
    window = SlidingWindow(vanilla, attention_len)
    window_1L = looped(text_1n, 0, attention_len)
    cached = CachedTransformerXL(model, **lengths)
    return {
        "vanilla": TimedScheme(window, text_1n, 1, window_1L, attention_len),
        "hidden": TimedScheme(model.with_lengths(**lengths), text_1n, segment_len),
        "cached": TimedScheme(cached, text_1n, segment_len),
    }


def run_rounds(schemes_by_length: dict[int, Schemes], rounds: int) -> None:
    """Record every scheme's turn in every round, in an order that reverses."""
    order: list[TimedScheme] = []
    for schemes in schemes_by_length.values():
        order += schemes.values()
    for _ in with_progress(range(rounds), rounds, "speed", "round"):
        for scheme in order:
            scheme.seconds.append(scheme.turn())
        order.reverse()


def summary(attention_len: int, schemes: Schemes) -> dict[str, Any]:
    """Return a line for Table 9: times, and ratios between vanilla and state reuse within the rounds."""
    rounds = {name: np.array(scheme.seconds) for name, scheme in schemes.items()}
    ratios = {}
    for name in ("hidden", "cached"):
        ratios[f"vanilla/{name}"] = spread(rounds["vanilla"] / rounds[name])
    return {
        "level": "char",
        "attention_len": attention_len,
        "seconds_per_token": {name: spread(seconds) for name, seconds in rounds.items()},
        "ratios": ratios,
    }


def spread(values: Array) -> dict[str, Any]:
    """Return the median and the extremes over rounds."""
    middle = float(np.median(values))
    rounds = values.tolist()
    return {
        "median": middle,
        "min": min(rounds),
        "max": max(rounds),
        "rounds": rounds,
    }


def write_report(results: dict[str, Any], directory: Path) -> list[str]:
    """Write `speed.md` and `speed.svg|png`.

    Args:
        results: the parsed `speed.json`.
        directory: folder for the files.

    Returns:
        Lines to print: the table and its notes.
    """
    curves: dict[str, Any] = {}
    rows = []
    for result in results["results"]:
        length = result["attention_len"]
        row = [f"{length:,}"]
        for name, times in result["seconds_per_token"].items():
            milliseconds = 1000 * times["median"]
            row.append(f"{milliseconds:,.3f}")
            lengths, values = curves.setdefault(SCHEMES[name], ([], []))
            lengths.append(length)
            values.append(milliseconds)
        for ratio in result["ratios"].values():
            row.append("{median:,.0f}× ({min:,.0f}–{max:,.0f})".format(**ratio))
        rows.append(row)
    x_label = "attention length (tokens)"
    y_label = "milliseconds per token"
    title = "Time per token by attention length"
    line_figure(directory / "speed", curves, x_label, y_label, title, log_y=True)
    machine = results["machine"]
    device = machine["accelerator"] or machine["processor"]
    sizes = ", ".join(f"{name} {value}" for name, value in results["model"].items())
    lines = [
        *markdown_table(HEADER, rows).splitlines(),
        "",
        "vanilla: a forward pass over the attention length for every token, softmax of its last position only. "
        f"hidden, cached: segments of {results['segment_len']} tokens with a memory of hidden states (the paper's) or "
        "of keys and values, as long as the attention. Every query attends to exactly the attention length.",
        f"Random weights: {sizes}; the vanilla model has equal sizes and absolute positions.",
        f"Medians of {results['rounds']} rounds, ratios within a round; {results['seconds']:,.0f} s in all. "
        f"{device}, threads: {machine['threads']}, torch {machine['torch']}.",
    ]
    write_text(directory / "speed.md", "\n".join(lines) + "\n")
    return lines
