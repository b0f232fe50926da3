"""Loss of every token of a split, the state carried from segment to segment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from txl_lightning.data.streams import Segment, Streams
from txl_lightning.model.language_model import LanguageModel

WINDOW_TOKENS = 4_096


@dataclass(frozen=True)
class TokenLosses:
    """Loss of every scored token of a split, in text order.

    Args:
        nll: [P], nats, in the dtype of the model.
        positions: [P], position of every token in the split, ascending. In a corpus of unordered sentences a
            `<S>` after the last token ends the last sentence; its position is the length of the split.
        left_out: number of tokens that are not scored, by reason: `first_of_streams`, `trimmed`, `max_segments`.
        seconds: duration.
    """

    nll: NDArray[np.floating]
    positions: NDArray[np.int64]
    left_out: dict[str, int]
    seconds: float

    @property
    def mean(self) -> float:
        """Mean loss in nats, summed in float64."""
        return float(self.nll.mean(dtype=np.float64))


@torch.no_grad()
def segment_losses(model: LanguageModel, streams: Streams, max_segments: int | None = None) -> Iterator[Tensor]:
    """Yield the nll of every segment, [B, T], in nats.

    Without memory segments do not depend on each other: neighbours of equal shape are scored in one batch of about
    `WINDOW_TOKENS` tokens.
    """
    device, state, size = device_of(model), None, 0
    independent = not getattr(getattr(model, "config", None), "is_recurrent", True)
    segments = (streams[index] for index in range(min(len(streams), max_segments or len(streams))))
    for group in _groups(segments, WINDOW_TOKENS if independent else 0):
        tokens = torch.cat([segment.tokens for segment in group]).to(device)
        targets = torch.cat([segment.targets for segment in group]).to(device)
        if independent and len(tokens) != size:  # otherwise the empty memory is passed on, to use its buffer again
            state, size = None, len(tokens)
        nll, state = model.score(tokens, targets, state)
        yield from nll.chunk(len(group))


def token_losses(
    model: LanguageModel,
    streams: Streams,
    max_segments: int | None = None,
    by_segment: Callable[[LanguageModel, Streams, int | None], Iterator[Tensor]] = segment_losses,
) -> TokenLosses:
    """Score streams from their start, the state carried from segment to segment, token by token in text order.

    The losses depend on the number of streams, since each starts without context: report both.

    Args:
        model: scores the tokens.
        streams: columns of the text.
        max_segments: stop after this many segments of each.
        by_segment: yields the nll of every segment, [B, T], in nats.
    """
    started = time.perf_counter()
    segments = [nll_BT.cpu().numpy() for nll_BT in by_segment(model, streams, max_segments)]
    nll = np.concatenate(segments, axis=1).ravel()
    positions = np.concatenate([streams.positions(index) for index in range(len(segments))], axis=1).ravel()
    if (np.diff(positions) < 0).any():  # columns of shuffled sentences
        order = positions.argsort()
        nll, positions = nll[order], positions[order]
    left_out = {**streams.left_out, "max_segments": streams.n_targets - len(nll)}
    return TokenLosses(nll, positions, left_out, time.perf_counter() - started)


def _groups(segments: Iterable[Segment], n_tokens: int) -> Iterator[list[Segment]]:
    """Yield lists of neighbouring segments of equal shape, each with at most `n_tokens` tokens or one segment."""
    group: list[Segment] = []
    for segment in segments:
        full = (len(group) + 1) * segment.tokens.numel() > n_tokens
        if group and (full or segment.tokens.shape != group[0].tokens.shape):
            yield group
            group = []
        group.append(segment)
    if group:
        yield group


def device_of(model: LanguageModel) -> torch.device:
    """Return the device of a model's parameters; the CPU for a model without any."""
    return next((p.device for p in getattr(model, "parameters", list)()), torch.device("cpu"))
