"""`txl speed`: Table 9 on this machine, a vanilla model's sliding window against state reuse."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
from txl_lightning.files import write_json
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
TURN_SECONDS = 0.3  # a turn is one segment, or as many as take as long


def run(options: SpeedOptions, directory: Path) -> list[str]:
    """Time all schemes; write `speed.json` and the figure.

    Args:
        options: the command's options.
        directory: folder for the files.

    Returns:
        Lines to print: the table and its notes.

    Raises:
        UserError: an option is not usable.
    """
    check_common_options(options)
    device = chosen_device(options.accelerator)
    set_threads(options.num_threads)
    torch.manual_seed(options.seed)
    model = random_model(options).to(device)
    text_1n = torch.randint(
        VOCABULARY,
        (1, options.segment_len + 1),
        device=device,
    )
    schemes = {}
    lengths = sorted(set(options.attention_lengths))
    for length in lengths:
        for name, scheme in make_schemes(model, length, text_1n).items():
            schemes[length, name] = scheme
    seconds = run_rounds(schemes, options.rounds)
    results: dict[str, Any] = {
        "model": {name: getattr(options, name) for name in SIZES},
        "segment_len": options.segment_len,
        "rounds": options.rounds,
        "results": [],
        "machine": {
            "device": torch.cuda.get_device_name() if device.type == "cuda" else processor(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        },
    }
    for length in lengths:
        of_length = {name: seconds[length, name] for name in SCHEMES}
        results["results"].append(summary(length, of_length))
    write_json(directory / "speed.json", results, allow_nan=False)
    draw(results["results"], directory / "speed")
    log_results("speed", results, options, directory)
    return report(results)


def random_model(options: SpeedOptions) -> TransformerXL:
    """Return a model with random weights.

    Raises:
        OptionError: the sizes do not fit each other, or the machine.
    """
    divides = options.d_model % options.n_head == 0
    require(
        divides,
        "n_head",
        options.n_head,
        f"must divide d_model, which is {options.d_model}",
    )
    config = TransformerXLConfig(
        vocab_size=VOCABULARY,
        n_layer=options.n_layer,
        d_model=options.d_model,
        n_head=options.n_head,
        d_head=options.d_model // options.n_head,
        d_inner=options.d_inner,
    )
    require_room(config)
    return TransformerXL(config).eval()


@dataclass
class Scheme:
    """Model that reads one segment again and again, with its state carried along.

    Args:
        model: model to time.
        text_1n: the segment's tokens, and the last one's target.
        state: state after the last segment.
    """

    model: LanguageModel
    text_1n: Tensor
    state: Any = None

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

    def seconds_per_token(self) -> float:
        """Return the median over one turn.

        The segments before the timed ones refill the CPU's cache after another scheme's turn.
        """
        threads = torch.get_num_threads()
        timer = Timer(
            "read()",
            globals={"read": self.read},
            num_threads=threads,
        )
        n_tokens = self.text_1n.shape[1] - 1
        return timer.blocked_autorange(min_run_time=TURN_SECONDS).median / n_tokens


def make_schemes(model: TransformerXL, attention_len: int, text_1n: Tensor) -> dict[str, Scheme]:
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
    absolute = replace(
        model.config,
        encoding="absolute",
        terms="a",
        mem_len=0,
    )
    vanilla = SlidingWindow(TransformerXL(absolute).to(text_1n.device).eval(), attention_len)
    window_1L = torch.randint(
        VOCABULARY,
        (1, attention_len),
        device=text_1n.device,
    )
    return {
        "vanilla": Scheme(vanilla, text_1n[:, :2], window_1L),
        "hidden": Scheme(model.with_lengths(**lengths), text_1n),
        "cached": Scheme(CachedTransformerXL(model, **lengths), text_1n),
    }


def run_rounds(schemes: dict[Any, Scheme], rounds: int) -> dict[Any, list[float]]:
    """Return each scheme's seconds per token in every round; the order reverses between rounds."""
    seconds: dict[Any, list[float]] = {key: [] for key in schemes}
    order = list(schemes)
    for _ in with_progress(range(rounds), rounds, "speed", "round"):
        for key in order:
            seconds[key].append(schemes[key].seconds_per_token())
        order.reverse()
    return seconds


def summary(attention_len: int, seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Return a line for Table 9: times, and ratios between vanilla and state reuse within the rounds."""
    times = {}
    ratios = {}
    for name, rounds in seconds.items():
        times[name] = with_median(rounds)
        ratios[f"vanilla/{name}"] = with_median(np.divide(seconds["vanilla"], rounds).tolist())
    return {"attention_len": attention_len, "seconds_per_token": times, "ratios": ratios}


def with_median(rounds: list[float]) -> dict[str, Any]:
    """Return the median over rounds, and their values."""
    return {"median": float(np.median(rounds)), "rounds": rounds}


def draw(results: list[dict[str, Any]], stem: Path) -> None:
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
    """Return the table with its notes."""
    header = ["attention length"]
    header += [f"{name}, ms per token" for name in SCHEMES]
    header += ["vanilla/hidden", "vanilla/cached"]
    rows = []
    for result in results["results"]:
        row = [f"{result['attention_len']:,}"]
        for times in result["seconds_per_token"].values():
            row.append(f"{1000 * times['median']:,.3f}")
        for name in ("hidden", "cached"):
            row.append(f"{result['ratios'][f'vanilla/{name}']['median']:,.0f}")
        rows.append(row)
    notes = (
        "vanilla: a window for every token; hidden (the paper's), cached: state reuse. Medians of "
    )
    notes += "{rounds} rounds; {machine[device]}, threads: {machine[threads]}.".format(**results)
    return [*markdown_table(header, rows).splitlines(), notes]
