"""`txl speed`: Table 9 on this machine, a vanilla model's sliding window against state reuse."""

from __future__ import annotations

import time
from collections.abc import Sequence
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
from txl_lightning.evaluation.losses import with_progress
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
    check_common_options(options)
    divides = options.d_model % options.n_head == 0
    require(divides, "n_head", options.n_head, f"must divide d_model, which is {options.d_model}")
    device = chosen_device(options.accelerator)
    set_threads(options.num_threads)
    started = time.perf_counter()
    torch.manual_seed(options.seed)
    sizes = {name: getattr(options, name) for name in SIZES}
    d_head = options.d_model // options.n_head
    config = TransformerXLConfig(vocab_size=VOCABULARY, d_head=d_head, **sizes)
    require_room(config)
    model = TransformerXL(config).to(device).eval()
    text_1n = torch.randint(
        VOCABULARY,
        (1, options.segment_len + 1),
        device=device,
    )
    schemes_by_length = {}
    for length in sorted(options.attention_lengths):
        schemes_by_length[length] = make_schemes(model, length, text_1n)
    run_rounds(schemes_by_length, options.rounds)
    device_name = processor()
    if device.type == "cuda":
        device_name = torch.cuda.get_device_name()
    results: dict[str, Any] = {
        "model": {**sizes, "vocab_size": VOCABULARY},
        "segment_len": options.segment_len,
        "rounds": options.rounds,
        "results": [summary(length, schemes) for length, schemes in schemes_by_length.items()],
        "machine": {
            "device": device_name,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        },
        "seconds": round(time.perf_counter() - started, 2),
    }
    write_json(directory / "speed.json", results, allow_nan=False)
    lines = report(results)
    write_text(directory / "speed.md", "\n".join(lines) + "\n")
    draw(results["results"], directory / "speed")
    log_results("speed", results, options, directory)
    return lines


@dataclass
class TimedScheme:
    """Model that reads one segment again and again, with its state carried along, and is timed.

    Args:
        model: model to time.
        text_1n: the segment's tokens, and the last one's target.
        state: state after the last segment.
        seconds: seconds per token in every recorded turn.
    """

    model: LanguageModel
    text_1n: Tensor
    state: Any = None
    seconds: list[float] = field(default_factory=list)

    @torch.no_grad()
    def read(self) -> Tensor:
        """Return the segment's losses, [1, segment_len], in nats."""
        tokens_1T = self.text_1n[:, :-1]
        targets_1T = self.text_1n[:, 1:]
        nll_1T, self.state = self.model.score(
            tokens_1T,
            targets_1T,
            self.state,
        )
        return nll_1T

    def turn(self) -> float:
        """Return seconds per token over one turn.

        The segments before the timed ones refill the CPU's cache after another scheme's turn.
        """
        threads = torch.get_num_threads()
        timer = Timer("read()", globals={"read": self.read}, num_threads=threads)
        n_tokens = self.text_1n.shape[1] - 1
        return timer.blocked_autorange(min_run_time=TURN_SECONDS).median / n_tokens


Schemes = dict[str, TimedScheme]


def make_schemes(model: TransformerXL, attention_len: int, text_1n: Tensor) -> Schemes:
    """Return the three schemes, each with the full attention length L from its first token on.

        vanilla        a forward pass over the L tokens before each prediction, softmax of the last position only; the
                       sizes are equal, the positions absolute sinusoids
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
    absolute = replace(model.config, encoding="absolute", terms="a", mem_len=0)
    vanilla = TransformerXL(absolute).to(text_1n.device).eval()
    window_1L = torch.randint(VOCABULARY, (1, attention_len), device=text_1n.device)
    return {
        "vanilla": TimedScheme(
            SlidingWindow(vanilla, attention_len),
            text_1n[:, :2],
            window_1L,
        ),
        "hidden": TimedScheme(model.with_lengths(**lengths), text_1n),
        "cached": TimedScheme(CachedTransformerXL(model, **lengths), text_1n),
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
    times = {}
    ratios = {}
    for name, scheme in schemes.items():
        times[name] = spread(scheme.seconds)
        ratios[f"vanilla/{name}"] = spread(
            np.divide(
                schemes["vanilla"].seconds,
                scheme.seconds,
            )
        )
    return {"attention_len": attention_len, "seconds_per_token": times, "ratios": ratios}


def spread(values: Any) -> dict[str, Any]:
    """Return the median and the extremes over rounds."""
    rounds = [float(value) for value in values]
    return {
        "median": float(np.median(rounds)),
        "min": min(rounds),
        "max": max(rounds),
        "rounds": rounds,
    }


def draw(results: Sequence[dict[str, Any]], stem: Path) -> None:
    """Draw every scheme's time by attention length."""
    lengths = [result["attention_len"] for result in results]
    curves = {}
    for name, title in SCHEMES.items():
        times = [1000 * result["seconds_per_token"][name]["median"] for result in results]
        curves[title] = (lengths, times)
    title = "Time per token by attention length"
    line_figure(
        stem, curves, "attention length (tokens)", "milliseconds per token", title, log_y=True
    )


def report(results: dict[str, Any]) -> list[str]:
    """Return the lines of `speed.md`: the table and its notes."""
    rows = []
    for result in results["results"]:
        row = [f"{result['attention_len']:,}"]
        for times in result["seconds_per_token"].values():
            row.append(f"{1000 * times['median']:,.3f}")
        for name in ("hidden", "cached"):
            ratio = result["ratios"][f"vanilla/{name}"]
            row.append("{median:,.0f}× ({min:,.0f}–{max:,.0f})".format(**ratio))
        rows.append(row)
    sizes = ", ".join(f"{name} {value}" for name, value in results["model"].items())
    return [
        *markdown_table(HEADER, rows).splitlines(),
        "",
        "vanilla: a forward pass over the attention length for every token, softmax of its last position only. "
        f"hidden, cached: segments of {results['segment_len']} tokens with a memory of hidden states (the paper's) or "
        "of keys and values, as long as the attention. Every query attends to exactly the attention length.",
        f"Random weights: {sizes}; the vanilla model has equal sizes and absolute positions.",
        f"Medians of {results['rounds']} rounds, ratios within a round; {results['seconds']:,.0f} s in all. "
        "{device}, threads: {threads}, torch {torch}.".format(**results["machine"]),
    ]
