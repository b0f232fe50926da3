"""Loss of a model over the streams of a split."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from txl_lightning.data.streams import Streams
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


@torch.no_grad()
def score_streams(model: LanguageModel, streams: Streams, max_segments: int | None = None) -> Score:
    """Score streams from their start, the state carried from segment to segment.

    The figure depends on the number of streams, since each starts without context: report it beside.
    """
    started = time.perf_counter()
    nll_sum, tokens, state = 0.0, 0, None
    device = next((p.device for p in getattr(model, "parameters", list)()), torch.device("cpu"))
    for index in range(min(len(streams), max_segments or len(streams))):
        segment = streams[index]
        nll_BT, state = model.score(segment.tokens.to(device), segment.targets.to(device), state)
        nll_sum += float(nll_BT.double().sum())
        tokens += nll_BT.numel()
    return Score(nll_sum / tokens, tokens, time.perf_counter() - started)
