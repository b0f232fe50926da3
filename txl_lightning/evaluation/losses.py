"""Token losses in streams, with the state carried from segment to segment, and standard errors for their mean.

Shape letters: B streams, T tokens, P positions, U units.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from tqdm import tqdm

from txl_lightning.data.streams import Streams
from txl_lightning.model.language_model import LanguageModel

PROGRESS_SECONDS = 20.0  # between two progress lines where there is no terminal

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Item = TypeVar("Item")


@dataclass(frozen=True)
class TokenLosses:
    """Every scored token's loss in a split, in text order.

    Args:
        nll: [P], in nats.
        positions: [P], every token's position in the split, ascending. With unordered sentences a `<S>` after the last
            token ends the last sentence; its position is the split's length.
        left_out: number of tokens that are not scored, by reason: `first_of_streams`, `trimmed`, `max_segments`.
        seconds: duration.
    """

    nll: NDArray[np.floating]
    positions: Integers
    left_out: dict[str, int]
    seconds: float

    @property
    def mean(self) -> float:
        """Mean loss in nats, summed in float64."""
        return float(self.nll.mean(dtype=np.float64))


@torch.no_grad()
def stream_losses(
    model: LanguageModel, streams: Streams, max_segments: int | None = None, title: str = "scored"
) -> TokenLosses:
    """Score streams from their start, the state carried from segment to segment, token by token in text order.

    The losses depend on the number of streams, since each starts without context: report both.

    Args:
        model: scores the tokens, at its current lengths.
        streams: the text's streams.
        max_segments: stop after this many segments per stream.
        title: title of the progress.
    """
    started = time.perf_counter()
    device = device_of(model)
    n_segments = min(len(streams), max_segments or len(streams))
    losses = []
    positions = []
    state = None
    for index in with_progress(range(n_segments), n_segments, title):
        segment = streams[index]
        nll_BT, state = model.score(
            segment.tokens.to(device),
            segment.targets.to(device),
            state,
        )
        losses.append(nll_BT.cpu().numpy())
        positions.append(streams.positions(index))
    nll_P = np.concatenate(losses, axis=1).ravel()
    positions_P = np.concatenate(positions, axis=1).ravel()
    order = positions_P.argsort()  # shuffled sentences have another order in streams
    left_out = {**streams.left_out, "max_segments": streams.n_targets - len(nll_P)}
    seconds = time.perf_counter() - started
    return TokenLosses(nll_P[order], positions_P[order], left_out, seconds)


def with_progress(
    items: Iterable[Item], total: int, title: str, unit: str = "segment"
) -> Iterable[Item]:
    """Return items that show how far they are, on a terminal at once, elsewhere every 20 seconds."""
    seconds = 0.1
    if not sys.stderr.isatty():
        seconds = PROGRESS_SECONDS
    return tqdm(
        items,
        title,
        total,
        leave=False,
        unit=unit,
        delay=seconds,
        mininterval=seconds,
    )


def device_of(model: LanguageModel) -> torch.device:
    """Return the device that holds a model's parameters; the CPU for a model without any."""
    if hasattr(model, "parameters"):
        for parameter in model.parameters():
            return parameter.device
    return torch.device("cpu")


@contextmanager
def evaluating(model: LanguageModel) -> Iterator[None]:
    """Switch all modules to evaluation mode for the block, then restore their modes."""
    training = []
    if isinstance(model, nn.Module):
        training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def text_units(
    positions: Integers, sentences: Integers | None, block_len: int
) -> tuple[Integers, str]:
    """Return each position's unit, and the unit's name in words: units are treated as independent.

    Units are the corpus's sentences if it has any, otherwise blocks of neighbouring tokens. Neighbouring tokens' losses
    are correlated; per-token errors would be too small. Per-block errors are still too small where correlation reaches
    beyond a block. A `<S>` belongs to the sentence that it ends.

    Args:
        positions: positions in the split.
        sentences: every sentence's first position, ascending from 0; None without sentences.
        block_len: tokens in a block.
    """
    if sentences is None:
        return positions // block_len, f"blocks of {block_len:,} tokens"
    return np.searchsorted(
        sentences,
        positions,
        side="left",
    ) - 1, "sentences"


def standard_error(values_P: NDArray[np.floating], units_P: Integers) -> tuple[float | None, int]:
    """Return the standard error of the mean of P values, correlated within units, and the number of units, U.

        m = Σ_u s_u / Σ_u n_u        Var m = U / (U - 1) · Σ_u (s_u - m n_u)² / P²

    s_u is the sum and n_u the number of values in unit u: the linearised ratio estimator, for units with any length. A
    single unit's error is None.
    """
    sums_U = np.bincount(units_P, weights=values_P).astype(np.float64)
    counts_U = np.bincount(units_P)
    n_units = int((counts_U > 0).sum())
    if n_units < 2:
        return None, n_units
    mean = sums_U.sum() / counts_U.sum()
    deviations_U = sums_U - mean * counts_U
    variance = n_units / (n_units - 1) * float((deviations_U**2).sum())
    return math.sqrt(variance) / len(values_P), n_units
