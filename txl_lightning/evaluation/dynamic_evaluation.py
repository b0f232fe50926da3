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
from txl_lightning.evaluation.losses import NORMAL_95, TokenLosses, device_of
from txl_lightning.evaluation.options import DynamicOptions
from txl_lightning.evaluation.protocols import Carried, SplitScores, split_line
from txl_lightning.runs.hardware import autocast
from txl_lightning.runs.metrics import shown_units

RUN = 8  # neighbouring segments of training text, before the next place


@dataclass(frozen=True)
class DynamicEvaluation:
    """Protocol in which the state is carried, and the weights that learn from every segment once it is scored.

        θ ← θ - η · g / (√MS + ε) + λ · min(√MS / mean(√MS), 1 / λ) · (θ_trained - θ)

    This is the RMS rule with decay (Krause et al. 2018). g is the gradient of the segment's mean loss, over all
    streams, without dropout. MS is the mean square of such gradients on training text, for every weight; mean(√MS) is
    over all weights. The trained model stays as it is: a copy learns, from the trained weights in every split.

    The memory holds hidden states: cached keys and values would be those of earlier weights.

    Args:
        carried: the same, static.
        rates: η (`lr`), λ (`decay`) and ε (`epsilon`).
        rms: √MS of every weight, from `gradient_rms`.
    """

    carried: Carried
    rates: DynamicOptions
    rms: tuple[Tensor, ...]

    def losses(self, corpus: Corpus, split: str) -> TokenLosses:
        """Score a split and learn from it."""
        return self.carried.losses(corpus, split, self._losses)

    def settings(self) -> dict[str, Any]:
        """Return all lengths, the precision and the rates."""
        return {**self.carried.settings(), "dynamic": vars(self.rates)}

    def scores(self, static: Carried, scores: SplitScores, files: Path | None) -> dict[str, Any]:
        """Return the entry `dynamic` of a split in `evaluation.json`.

        Args:
            static: protocol with the trained weights.
            scores: scores of the split.
            files: folder for the losses of all tokens; None to write none.

        Raises:
            OptionError: the learning rate is too large.
        """
        after, allowed = scores.losses(self), f"is too large: the loss of {scores.split} is not finite"
        require(math.isfinite(after.mean), "dynamic.lr", self.rates.lr, allowed)
        below = scores.difference(scores.losses(static), after)
        return {**scores.values(after), "below_static": below, **scores.written(self, "_dynamic", files)}

    def lines(self, scored: dict[str, Any], corpus: str) -> list[str]:
        """Return lines to print: every split's loss and difference.

        Args:
            scored: entries of the splits in `evaluation.json`.
            corpus: name of the corpus.
        """
        lines = []
        for split, result in scored.items():
            below = result["dynamic"]["below_static"]
            unit = shown_units(below)[0]
            gain, error = below[unit], below["standard_error"][unit]
            ends = None if error is None else (gain - NORMAL_95 * error, gain + NORMAL_95 * error)
            interval = ", 95 % interval {:.4f} to {:.4f}".format(*ends) if ends else ""
            lines.append(split_line(f"{split}, dynamic", result["dynamic"], corpus, vars(self.rates)))
            lines.append(f"{split}: dynamic evaluation is {gain:.4f} {unit} below static{interval} (paired by token)")
        return lines

    def _losses(self, model: Any, streams: Streams, max_segments: int | None) -> Iterator[Tensor]:
        """Yield the nll of every segment, [B, T], in nats; the weights learn from it before the next one is scored."""
        model, trained, state = copy.deepcopy(model), _weights(model), None
        mean = torch.cat([rms.flatten() for rms in self.rms]).mean()
        rates = [(self.rates.lr or 0.0) / (rms + self.rates.epsilon) for rms in self.rms]
        decays = [(self.rates.decay * rms / mean).clamp(max=1.0) for rms in self.rms]
        for index in range(min(len(streams), max_segments or len(streams))):
            nll_BT, state = _score(model, streams[index], state)
            yield nll_BT.detach()
            steps = zip(_weights(model), _gradients(nll_BT, model), rates, decays, trained, strict=True)
            with torch.no_grad():
                for weight, gradient, rate, decay, origin in steps:
                    weight += decay * (origin - weight) - rate * gradient


def gradient_rms(carried: Carried, corpus: Corpus, n_segments: int) -> tuple[Tensor, ...]:
    """Return √MS of every weight: the root mean square of its gradients in segments of training text.

    Segments are read in runs of neighbours, spread evenly over the split, each run after a memory's length of text.

    Args:
        carried: streams, segments and memory are those of evaluation.
        corpus: that of the training.
        n_segments: number of segments, in whole runs.
    """
    model, streams, lengths = carried.model(), carried.streams(corpus, "train"), carried.lengths
    before = -(-(lengths.memory or 0) // lengths.segment)
    length = min(RUN, n_segments, len(streams))
    firsts = np.linspace(0, len(streams) - length, -(-min(n_segments, len(streams)) // length), dtype=int)
    squares = [torch.zeros_like(weight) for weight in _weights(model)]
    with autocast(carried.precision, device_of(model)):
        for first in firsts:
            state = None
            for index in range(max(0, first - before), first + length):
                nll_BT, state = _score(model, streams[index], state)
                if index >= first:
                    for square, gradient in zip(squares, _gradients(nll_BT, model), strict=True):
                        square.addcmul_(gradient, gradient)
    return tuple((square / (length * len(firsts))).sqrt() for square in squares)


def dynamic_evaluation(carried: Carried, corpus: Corpus, options: DynamicOptions) -> DynamicEvaluation:
    """Return the protocol with weights that learn.

    Args:
        carried: the same, static.
        corpus: that of the training.
        options: rates, and segments of training text.

    Raises:
        OptionError: there are several processes.
    """
    n_ranks = os.environ.get("WORLD_SIZE", os.environ.get("SLURM_STEP_NUM_TASKS", "1"))  # of torchrun or srun
    require(n_ranks == "1", "dynamic.lr", options.lr, "must run in one process: segments follow each other")
    return DynamicEvaluation(carried, options, gradient_rms(carried, corpus, options.segments))


def _score(model: Any, segment: Batch, state: Any) -> Any:
    device = device_of(model)
    return model.score(segment.tokens.to(device), segment.targets.to(device), state)


def _weights(model: Any) -> list[Tensor]:
    return [weight for weight in model.parameters() if weight.requires_grad]


def _gradients(nll_BT: Tensor, model: Any) -> tuple[Tensor, ...]:
    gradients = torch.autograd.grad(nll_BT.mean(), _weights(model), materialize_grads=True)
    torch.clear_autocast_cache()  # it keeps weights in bfloat16, which the next update makes stale
    return gradients
