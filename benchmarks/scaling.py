"""Picture of the cost of a training step against each size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cases import AXES, SCALING_BASE, BenchmarkCase
from txl_lightning.reporting.canvas import COLOURS, MARKERS, new_figure, short

Curve = tuple[list[int], list[float], list[float]]


def case_name(axis: str, value: int) -> str:
    """Return the name of the case with one size changed; `base` where it is that of the base."""
    return "base" if value == getattr(SCALING_BASE, axis) else f"{axis} {value}"


def scaled(axis: str, value: int) -> BenchmarkCase:
    """Return the sizes of a case."""
    return replace(SCALING_BASE, **{axis: value})  # type: ignore[arg-type]


def cost_name(axis: str) -> str:
    """Return the name of a size in words."""
    return {"batch_size": "batch", "n_layer": "depth", "vocab_size": "vocabulary"}.get(axis, axis)


def curves(records: Mapping[str, Mapping[str, Any]]) -> dict[str, Curve]:
    """Return sizes, seconds a step and operations a step for every size that has at least two records."""
    found = {}
    for axis, values in AXES.items():
        present = [value for value in values if case_name(axis, value) in records]
        own = [records[case_name(axis, value)] for value in present]
        seconds = [median(record["seconds"]["ours float32"]) / record["identity"]["sizes"]["steps"] for record in own]
        if len(present) > 1:
            found[axis] = (present, seconds, [scaled(axis, value).training_flops for value in present])
    return found


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the slope of log y over log x between the first and the last point."""
    return math.log(y[-1] / y[0]) / math.log(x[-1] / x[0])


def draw(records: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Draw milliseconds a step over each size on logarithmic axes as PNG, with the slope of the last two points.

    Dashed: the same slopes as the operations of the matrix products, through the largest size.
    """
    found = curves(records)
    figure = new_figure(5.4, 5.2)
    axes = figure.add_subplot()
    for (axis, (sizes, seconds, flops)), colour, marker in zip(found.items(), COLOURS, MARKERS, strict=False):
        slopes = slope(sizes[-2:], seconds[-2:]), slope(sizes[-2:], flops[-2:])
        label = f"{cost_name(axis)}: slope {slopes[0]:.2f}, products {slopes[1]:.2f}"
        axes.plot(
            sizes, [1000 * s for s in seconds], color=colour, marker=marker, markersize=4, linewidth=1.4, label=label
        )
        of_products = [1000 * seconds[-1] * value / flops[-1] for value in flops]
        axes.plot(sizes, of_products, color=colour, linewidth=1, linestyle="--")
    axes.plot([], [], color="0.35", linestyle="--", linewidth=1, label="operations of the matrix products")
    axes.set(
        xscale="log", yscale="log", xlabel="size", ylabel="ms a training step", title="Cost against size (float32)"
    )
    for of_axis in (axes.xaxis, axes.yaxis):
        of_axis.set_major_formatter(lambda value, _: short(value))
        of_axis.set_minor_formatter("")
    axes.grid(alpha=0.3)
    figure.legend(frameon=False, fontsize=9, loc="outside lower center")
    figure.savefig(path, dpi=150)
