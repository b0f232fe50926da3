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
from torch import Tensor, nn
from tqdm import tqdm

from txl_lightning.data.streams import Batch, Streams
from txl_lightning.model.language_model import LanguageModel

SEGMENT_TOKENS = 4_096  # in segments without memory that are scored together
NORMAL_95 = 1.96  # standard errors on either side of a mean
PROGRESS_SECONDS = 20  # between two progress lines where there is no terminal

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
def segment_losses(
    model: LanguageModel, streams: Streams, max_segments: int | None = None
) -> Iterator[Tensor]:
    """Yield every segment's nll, [B, T], in nats, with the state carried from one segment to the next.

    Without memory segments do not depend on each other: neighbours with equal shape are scored in one batch with about
    `SEGMENT_TOKENS` tokens.
    """
    device = device_of(model)
    is_recurrent = getattr(getattr(model, "config", None), "is_recurrent", True)
    most_tokens = 0 if is_recurrent else SEGMENT_TOKENS
    n_streams = 0
    state = None
    for group in _joined_segments(streams, number_of_segments(streams, max_segments), most_tokens):
        tokens = torch.cat([segment.tokens for segment in group]).to(device)
        targets = torch.cat([segment.targets for segment in group]).to(device)
        if len(tokens) != n_streams:
            state = None
            n_streams = len(tokens)
        nll, state = model.score(tokens, targets, state)
        yield from nll.chunk(len(group))


def number_of_segments(streams: Streams, max_segments: int | None) -> int:
    """Return the number of segments to score; None is no limit."""
    if max_segments is None:
        return len(streams)
    return min(len(streams), max_segments)


def _joined_segments(streams: Streams, n_segments: int, most_tokens: int) -> Iterator[list[Batch]]:
    """Yield lists of neighbouring segments with one shape, together at most `most_tokens` unless alone."""
    group: list[Batch] = []
    for index in range(n_segments):
        segment = streams[index]
        if group:
            has_shape = segment.tokens.shape == group[0].tokens.shape
            n_tokens = (len(group) + 1) * segment.tokens.numel()
            if not has_shape or n_tokens > most_tokens:
                yield group
                group = []
        group.append(segment)
    if group:
        yield group


def stream_losses(
    model: LanguageModel, streams: Streams, max_segments: int | None = None
) -> TokenLosses:
    """Score streams from their start, the state carried from segment to segment, token by token in text order.

    The losses depend on the number of streams, since each starts without context: report both.

    Args:
        model: scores the tokens, at its current lengths.
        streams: the text's streams.
        max_segments: stop after this many segments per stream.
    """
    return collect_losses(segment_losses(model, streams, max_segments), streams)


def collect_losses(nll_by_segment: Iterable[Tensor], streams: Streams) -> TokenLosses:
    """Return the segments' losses, [B, T] in nats, in text order."""
    started = time.perf_counter()
    losses: list[NDArray[np.floating]] = []
    positions: list[Integers] = []
    for index, nll_BT in enumerate(nll_by_segment):
        losses.append(nll_BT.cpu().numpy())
        positions.append(streams.positions(index))
    nll = np.concatenate(losses, axis=1).ravel()
    places = np.concatenate(positions, axis=1).ravel()
    order = places.argsort()  # shuffled sentences have another order in streams
    left_out = streams.left_out
    left_out["max_segments"] = streams.n_targets - len(nll)
    return TokenLosses(
        nll[order],
        places[order],
        left_out,
        time.perf_counter() - started,
    )


def with_progress(
    items: Iterable[Item], total: int, title: str, unit: str = "segment"
) -> Iterator[Item]:
    """Yield items and show how far they are: a bar on a terminal, elsewhere a line on stderr every 20 seconds."""
    if sys.stderr.isatty():
        yield from tqdm(
            items,
            desc=title,
            total=total,
            unit=unit,
            leave=False,
        )
        return
    started = time.monotonic()
    shown = started
    for n_done, item in enumerate(items, 1):
        now = time.monotonic()
        if now - shown >= PROGRESS_SECONDS:
            shown = now
            seconds_left = (now - started) / n_done * (total - n_done)
            how_far = f"{n_done:,} of {total:,} {unit}s"
            line = f"{title}: {how_far}, about {seconds_left:,.0f} s left"
            print(line, file=sys.stderr, flush=True)
        yield item


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
    return np.searchsorted(sentences, positions, side="left") - 1, "sentences"


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
