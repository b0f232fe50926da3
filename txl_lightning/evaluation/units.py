"""Loss units: nats, bits and perplexity; the memory that a process needed."""

from __future__ import annotations

import math
import resource
import sys
from collections.abc import Mapping
from typing import NamedTuple

import torch

LARGE = 1e6


class Unit(NamedTuple):
    """A loss unit.

    Args:
        name: name in words.
        words: a value in words, `{}` for its number.
        digits: digits after the point.
    """

    name: str
    words: str
    digits: int

    def number(self, value: float) -> str:
        """Return a value with its digits; a very large one with three."""
        if value >= LARGE:
            return f"{value:.3g}"
        return f"{value:.{self.digits}f}"


UNITS = {  # in the order in which they are shown
    "bpc": Unit("bits per character", "{} bits per character", 4),
    "ppl": Unit("perplexity", "perplexity {}", 2),
    "bpt": Unit("bits per token", "{} bits per token", 4),
    "bpb": Unit("bits per byte", "{} bits per byte", 4),
}
UNITS_OF_LEVELS = {"char": "bpc", "byte": "bpb"}


def loss_unit(level: str) -> str:
    """Return the losses' unit: `ppl` for words, ids and BPE tokens, `bpc` for characters, `bpb` for bytes.

    Args:
        level: token level: byte, char, word, bpe, ids, or token for another tokenizer's pieces.
    """
    return UNITS_OF_LEVELS.get(level, "ppl")


def unit_name(level: str) -> str:
    """Return the losses' unit in words: see `loss_unit`."""
    return UNITS[loss_unit(level)].name


def loss_metrics(nll: float, level: str, bytes_per_token: float | None = None) -> dict[str, float]:
    """Return a mean loss's metrics: `nll`, `ppl` or `bpc`, for ids also `bpt`, and `bpb`, which compares levels.

    bpc = bpt = nll / ln 2        bpb = nll / ln 2 / bytes per token
    ppl = exp nll (infinite from nll = 700, where float64 nearly overflows)

    Args:
        nll: mean negative log-likelihood in nats per token.
        level: see `loss_unit`.
        bytes_per_token: mean over the same tokens; without `bpb` if it is None or nan (not known) or 0 (no text).
    """
    bits = nll / math.log(2)
    unit = loss_unit(level)
    values = {"nll": nll, unit: bits}
    if unit == "ppl":
        values["ppl"] = math.exp(nll) if nll < 700 else math.inf
    if level == "ids":
        values["bpt"] = bits
    if bytes_per_token and not math.isnan(bytes_per_token):
        values["bpb"] = bits / bytes_per_token
    return values


def errors_by_unit(error: float | None, nll: float, level: str) -> dict[str, float | None]:
    """Convert a standard error in nats to the level's unit: d bpc = d bpb = d nll / ln 2, d ppl = ppl · d nll."""
    unit = loss_unit(level)
    if error is None:
        return {"nll": None, unit: None}
    scale = 1 / math.log(2)
    if unit == "ppl":
        scale = loss_metrics(nll, level)["ppl"]
    return {"nll": error, unit: scale * error}


def shown_units(values: Mapping[str, float], prefix: str = "") -> list[str]:
    """Return the loss units to show: `bpc` or `ppl`, `bpt` for ids, `bpb` where it is known and differs.

    Args:
        values: metrics by name.
        prefix: before their names, such as `val/`.
    """
    units = [unit for unit in UNITS if f"{prefix}{unit}" in values]
    if (
        units
        == [
            "bpc",
            "bpb",
        ]
        and values[f"{prefix}bpc"] == values[f"{prefix}bpb"]
    ):
        return ["bpc"]
    return units


def peak_memory(device: torch.device) -> int:
    """Return the most memory so far, in bytes: tensors on a GPU, or this process's resident memory on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
