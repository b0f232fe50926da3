"""Loss of a model over the streams of a split, the state carried from segment to segment."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from txl_lightning.data.streams.ordered import Streams
from txl_lightning.evaluation.scoring.device import device_of
from txl_lightning.model.language_model import LanguageModel


@dataclass(frozen=True)
class Score:
    """Mean loss over a pass.

    Args:
        nll: nats a token, weighted by tokens, summed in float64.
        tokens: tokens scored.
        seconds: time it took.
    """

    nll: float
    tokens: int
    seconds: float


@dataclass(frozen=True)
class TokenLosses:
    """The loss of every scored token of a split, in the order of its text.

    Args:
        nll: nats, [P], in the type that the model computes in.
        positions: place of every token in the split, [P], ascending. The `<S>` that ends the last of unordered
            sentences stands behind the split's last token.
        left_out: how many tokens of the split are not scored, by reason: `first_of_streams`, `trimmed`,
            `max_segments`.
        seconds: time it took.
    """

    nll: NDArray[np.floating]
    positions: NDArray[np.int64]
    left_out: dict[str, int]
    seconds: float

    @property
    def mean(self) -> float:
        """Nats a token, summed in float64."""
        return float(self.nll.mean(dtype=np.float64))


def score_streams(model: LanguageModel, streams: Streams, max_segments: int | None = None) -> Score:
    """Score streams from their start, the state carried from segment to segment.

    The figure depends on the number of streams, since each starts without context: report it beside.
    """
    started = time.perf_counter()
    nll_sum, tokens = 0.0, 0
    for nll_BT in segment_losses(model, streams, max_segments):
        nll_sum += float(nll_BT.double().sum())
        tokens += nll_BT.numel()
    return Score(nll_sum / tokens, tokens, time.perf_counter() - started)


def token_losses(model: LanguageModel, streams: Streams, max_segments: int | None = None) -> TokenLosses:
    """As `score_streams`, but the loss of every token: the streams' columns put back into the order of the text."""
    started = time.perf_counter()
    segments = [nll_BT.cpu().numpy() for nll_BT in segment_losses(model, streams, max_segments)]
    nll = np.concatenate(segments, axis=1).ravel()
    positions = np.concatenate([streams.positions(index) for index in range(len(segments))], axis=1).ravel()
    if (np.diff(positions) < 0).any():  # columns of shuffled sentences
        order = positions.argsort()
        nll, positions = nll[order], positions[order]
    left_out = {**streams.left_out, "max_segments": streams.n_targets - len(nll)}
    return TokenLosses(nll, positions, left_out, time.perf_counter() - started)


@torch.no_grad()
def segment_losses(model: LanguageModel, streams: Streams, max_segments: int | None = None) -> Iterator[Tensor]:
    """nll of every segment, [B, T], one after the other."""
    device, state = device_of(model), None
    for index in range(min(len(streams), max_segments or len(streams))):
        segment = streams[index]
        nll_BT, state = model.score(segment.tokens.to(device), segment.targets.to(device), state)
        yield nll_BT
