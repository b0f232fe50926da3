"""Dynamic evaluation (Krause et al. 2018, 2019): every segment is scored, and then the weights learn from it."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from txl_lightning.data.corpus import Corpus
from txl_lightning.data.streams import Batch, Streams
from txl_lightning.errors import require
from txl_lightning.evaluation.hardware import autocast
from txl_lightning.evaluation.losses import TokenLosses, collect_losses, device_of, number_of_segments
from txl_lightning.evaluation.options import DynamicOptions
from txl_lightning.evaluation.protocol import Protocol
from txl_lightning.evaluation.scores import SplitScores, score_line

RUN = 8  # neighbouring segments of training text, before the next place


@dataclass(frozen=True)
class LearningProtocol:
    """Protocol in which the weights learn from every segment once it is scored.

        θ ← θ - η · g / (√MS + ε) + λ · min(√MS / mean(√MS), 1 / λ) · (θ_trained - θ)

    This is the RMS rule with decay (Krause et al. 2018). g is the gradient of the segment's mean loss, over all
    streams, without dropout. MS is the mean square of such gradients on training text, for every weight; mean(√MS) is
    over all weights. The trained model stays as it is: a copy learns, from the trained weights in every split.

    The memory holds hidden states: cached keys and values would belong to earlier weights.

    Args:
        static: the protocol without learning.
        rates: η (`lr`), λ (`decay`) and ε (`epsilon`).
        rms: √MS of every weight, from `gradient_rms`.
    """

    static: Protocol
    rates: DynamicOptions
    rms: tuple[Tensor, ...]

    def losses(self, corpus: Corpus, split: str) -> TokenLosses:
        """Score a split and learn from it."""
        streams = self.static.streams(corpus, split)
        max_segments = self.static.evaluation.max_segments
        with autocast(self.static.precision, device_of(self.static.trained.model)):
            nll_by_segment = self._learning_losses(streams, max_segments)
            return collect_losses(nll_by_segment, streams, max_segments, title=f"{split}, dynamic")

    def settings(self) -> dict[str, Any]:
        """Return all lengths, the precision and the rates."""
        return {**self.static.settings(), "dynamic": vars(self.rates)}

    def _learning_losses(self, streams: Streams, max_segments: int | None) -> Iterator[Tensor]:
        """Yield the nll of every segment, [B, T], in nats; learn from it before the next one is scored."""
        static_model = self.static.model()
        model = copy.deepcopy(static_model)
        trained_weights = _weights(static_model)
        weights = _weights(model)
        mean = torch.cat([rms.flatten() for rms in self.rms]).mean()
        lr = self.rates.lr or 0.0
        rates = [lr / (rms + self.rates.epsilon) for rms in self.rms]
        decays = [(self.rates.decay * rms / mean).clamp(max=1.0) for rms in self.rms]
        state = None
        for index in range(number_of_segments(streams, max_segments)):
            nll_BT, state = _score(model, streams[index], state)
            yield nll_BT.detach()
            gradients = _gradients(nll_BT, weights)
            steps = zip(weights, gradients, rates, decays, trained_weights, strict=True)
            with torch.no_grad():
                for weight, gradient, rate, decay, trained in steps:
                    weight += decay * (trained - weight) - rate * gradient


def learning_protocol(static: Protocol, corpus: Corpus, options: DynamicOptions) -> LearningProtocol:
    """Return the protocol with weights that learn.

    Args:
        static: the protocol without learning.
        corpus: corpus of the training.
        options: rates, and segments of training text.

    Raises:
        OptionError: there are several processes.
    """
    n_ranks = os.environ.get("WORLD_SIZE", os.environ.get("SLURM_STEP_NUM_TASKS", "1"))  # of torchrun or srun
    require(n_ranks == "1", "dynamic.lr", options.lr, "must run in one process: segments follow each other")
    return LearningProtocol(static, options, gradient_rms(static, corpus, options.segments))


def gradient_rms(static: Protocol, corpus: Corpus, n_segments: int) -> tuple[Tensor, ...]:
    """Return √MS of every weight: the root mean square of its gradients in segments of training text.

    Segments are read in runs of neighbours, spread evenly over the split, each run after a memory's length of text.

    Args:
        static: its streams, segments and memory are used.
        corpus: corpus of the training.
        n_segments: number of segments, in whole runs.
    """
    model = static.model()
    weights = _weights(model)
    streams = static.streams(corpus, "train")
    lengths = static.lengths
    warm_up = math.ceil((lengths.memory or 0) / lengths.segment)
    run_length = min(RUN, n_segments, len(streams))
    n_runs = math.ceil(min(n_segments, len(streams)) / run_length)
    squares = [torch.zeros_like(weight) for weight in weights]
    with autocast(static.precision, device_of(model)):
        for first in np.linspace(0, len(streams) - run_length, n_runs, dtype=int):
            state = None
            for index in range(max(0, first - warm_up), first + run_length):
                nll_BT, state = _score(model, streams[index], state)
                if index >= first:
                    for square, gradient in zip(squares, _gradients(nll_BT, weights), strict=True):
                        square.addcmul_(gradient, gradient)
    return tuple((square / (run_length * n_runs)).sqrt() for square in squares)


def score_learning(learning: LearningProtocol, scores: SplitScores, directory: Path | None) -> dict[str, Any]:
    """Return the entry `dynamic` of a split in `evaluation.json`.

    Args:
        learning: the protocol.
        scores: scores of the split.
        directory: folder for the losses of all tokens; None to write none.

    Raises:
        OptionError: the learning rate is too large.
    """
    losses = scores.losses(learning)
    allowed = f"is too large: the loss of {scores.split} is not finite"
    require(math.isfinite(losses.mean), "dynamic.lr", learning.rates.lr, allowed)
    entry = scores.values(losses)
    entry["below_static"] = scores.difference(scores.losses(learning.static), losses)
    if directory is not None:
        entry["losses"] = scores.write_losses(losses, "_dynamic", directory)
    return entry


def learning_lines(split: str, entry: dict[str, Any]) -> list[str]:
    """Return the loss of dynamic evaluation, and how much lower it is, with its standard error.

    Args:
        split: name of the split.
        entry: its entry `dynamic` in `evaluation.json`.
    """
    below = entry["below_static"]
    gain = score_line(f"{split}, dynamic below static", below)
    return [score_line(f"{split}, dynamic", entry), f"{gain}, paired by token"]


def _score(model: Any, segment: Batch, state: Any) -> Any:
    device = device_of(model)
    return model.score(segment.tokens.to(device), segment.targets.to(device), state)


def _weights(model: Any) -> list[Tensor]:
    return [weight for weight in model.parameters() if weight.requires_grad]


def _gradients(nll_BT: Tensor, weights: list[Tensor]) -> tuple[Tensor, ...]:
    gradients = torch.autograd.grad(nll_BT.mean(), weights, materialize_grads=True)
    torch.clear_autocast_cache()  # it keeps weights in bfloat16, which the next update makes stale
    return gradients
