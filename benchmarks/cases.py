"""Cases of the benchmark: sizes, the turns of a round, and the work that a step needs at least."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

FLOAT32, BF16 = "float32", "bf16"
BOTH = tuple(f"{name} {precision}" for name in ("ours", "huggingface") for precision in (FLOAT32, BF16))
PRODUCTS = tuple(f"matrix {precision}" for precision in (FLOAT32, BF16))
READS = ("bandwidth float32",)


class Limits(NamedTuple):
    """Work that shows a device's limits: products of square matrices, and sums of a buffer."""

    matrix_size: int
    products: int
    buffer_values: int
    reads: int


# A GPU does the CPU's work in less time than it takes to start it.
LIMITS = {"cpu": Limits(2048, 8, 1 << 26, 4), "cuda": Limits(8192, 50, 1 << 28, 50)}


@dataclass(frozen=True)
class BenchmarkCase:
    """Sizes of a model and its steps: `segment` and `memory` in tokens, `steps` of one turn.

    A turn of evaluation begins with `untimed` steps more: they cast the weights and warm the caches, which a long text
    needs once.
    """

    n_layer: int
    d_model: int
    n_head: int
    d_inner: int
    segment: int
    memory: int
    batch_size: int
    steps: int
    vocab_size: int = 256
    cutoffs: tuple[int, ...] = ()
    dropout: float = 0.0
    threads: int = 2
    device: str = "cpu"
    precision: str = FLOAT32
    untimed: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.batch_size * self.segment

    @property
    def layer_weights(self) -> int:
        """Weights of the matrices of all layers, with those of the positions."""
        return self.n_layer * (5 * self.d_model**2 + 2 * self.d_model * self.d_inner)

    @property
    def training_flops(self) -> float:
        """Floating-point operations of the matrix products that one training step needs.

        Forward pass, gradients of the weights, and gradients of the inputs where a weight or a token depends on
        them: not those of the memory and the positions. Scores of visible pairs of query and key only; the clusters
        of an adaptive softmax as often as their tokens are drawn.
        """
        B, T, M, D = self.batch_size, self.segment, self.memory, self.d_model
        projections = 2 * 3 * B * T * (4 * D * D + 2 * D * self.d_inner)
        memory_and_positions = 2 * 2 * (B * M * 2 * D * D + (M + T) * D * D)
        pairs = T * M + T * (T + 1) // 2
        attention = 2 * 3 * 3 * B * D * pairs
        return self.n_layer * (projections + memory_and_positions + attention) + 2 * 3 * B * T * D * self.softmax_width

    @property
    def softmax_width(self) -> float:
        """Columns of the softmax that a token is scored with, on average."""
        if not self.cutoffs:
            return self.vocab_size
        edges = (*self.cutoffs, self.vocab_size)
        tails = (
            (end - first) * math.log((end + 1) / (first + 1)) / math.log(self.vocab_size + 1)
            for first, end in pairwise(edges)
        )
        return self.cutoffs[0] + len(self.cutoffs) + sum(tails)

    def step_bytes(self, bytes_per_value: int) -> int:
        """Return the bytes that a step of evaluation reads at least: all weights, keys and values once."""
        weights = self.layer_weights - self.n_layer * self.d_model**2 + self.vocab_size * self.d_model
        keys_and_values = 2 * self.n_layer * self.batch_size * (self.memory + self.segment) * self.d_model
        return bytes_per_value * (weights + keys_and_values)


@dataclass(frozen=True)
class TurnTaking:
    """Processes that take turns on one case.

    Args:
        workload: key of `WORKLOADS`.
        sizes: sizes of the case.
        turns: implementation and precision of each process.
        minutes: expected time on two cores.
        rounds: measured rounds; None for those of the command line.
    """

    workload: str
    sizes: BenchmarkCase
    turns: tuple[str, ...]
    minutes: float
    rounds: int | None = None


TINY = BenchmarkCase(n_layer=2, d_model=32, n_head=4, d_inner=64, segment=16, memory=16, batch_size=4, steps=5)
SMALL = BenchmarkCase(n_layer=4, d_model=128, n_head=8, d_inner=512, segment=64, memory=64, batch_size=16, steps=5)
LARGE = BenchmarkCase(n_layer=6, d_model=256, n_head=8, d_inner=1024, segment=128, memory=128, batch_size=16, steps=2)
BASE = BenchmarkCase(n_layer=12, d_model=512, n_head=8, d_inner=2048, segment=512, memory=512, batch_size=2, steps=1)
LONG = replace(BASE, segment=128, memory=3800, batch_size=1, untimed=1)


def _training(sizes: BenchmarkCase, minutes: float, *more: str) -> TurnTaking:
    return TurnTaking("training", replace(sizes, dropout=0.1), (*BOTH, *PRODUCTS, *more), minutes)


COMPARISONS = {
    "training": {
        "tiny": TurnTaking("training", TINY, BOTH, 0.2, 1),  # measured only where it is named
        "small": _training(SMALL, 0.7, "loader float32"),
        "large": _training(LARGE, 1.3),
        "base": _training(BASE, 1.7),
        "words": _training(replace(LARGE, vocab_size=20_000, cutoffs=(2_000, 8_000)), 1.7),
    },
    "evaluation": {
        "one stream": TurnTaking("evaluation", replace(LONG, steps=4), BOTH, 1.5),
        "four streams": TurnTaking("evaluation", replace(LONG, batch_size=4), BOTH, 2.0),
    },
    "token": {
        "one stream": TurnTaking("evaluation", replace(LONG, segment=1, steps=20), (*BOTH, *READS), 2.0),
        "eight streams": TurnTaking(
            "evaluation", replace(LONG, segment=1, batch_size=8, steps=5), (*BOTH, *READS), 4.0, 5
        ),
    },
    "generation": {
        "one stream": TurnTaking("generation", replace(LARGE, segment=1, memory=512, batch_size=1, steps=20), BOTH, 0.7)
    },
}

# Sizes that are varied one at a time.
AXES = {
    "segment": (32, 64, 128, 256, 512),
    "memory": (64, 256, 512, 1024, 2048),
    "batch_size": (4, 8, 16, 32, 64),
    "n_layer": (1, 2, 4, 8, 16),
    "vocab_size": (256, 1024, 4096, 8192, 16384),
}
SCALING_BASE = replace(SMALL, steps=2)


def scaling_name(axis: str, value: int) -> str:
    """Return the name of the case with one size changed; `base` where it is that of the base."""
    return "base" if value == getattr(SCALING_BASE, axis) else f"{axis} {value}"


def scaled(axis: str, value: int) -> BenchmarkCase:
    """Return the sizes of a case with one size changed."""
    return replace(SCALING_BASE, **{axis: value})  # type: ignore[arg-type]


def comparisons() -> dict[str, TurnTaking]:
    """Return all cases in which processes take turns, by section/case."""
    named = {f"{group}/{name}": case for group, cases in COMPARISONS.items() for name, case in cases.items()}
    for axis, values in AXES.items():
        for value in values:
            own = TurnTaking("training", scaled(axis, value), ("ours float32",), minutes=0.08, rounds=3)
            named[f"scaling/{scaling_name(axis, value)}"] = own
    return named
