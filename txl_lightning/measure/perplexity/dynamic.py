"""Dynamic evaluation (Krause et al. 2018, 2019): every segment is scored, and then the weights learn from it."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from txl_lightning.config.lengths import extended_context
from txl_lightning.data.corpus import Corpus
from txl_lightning.data.datamodule import evaluation_streams
from txl_lightning.data.streams import Segment, Streams
from txl_lightning.errors import require
from txl_lightning.measure.perplexity import DynamicOptions
from txl_lightning.measure.perplexity.attention_lengths import SplitScores, difference
from txl_lightning.measure.scoring.protocols import ScoringProtocol, StateReuse
from txl_lightning.measure.scoring.standard_errors import NORMAL_95
from txl_lightning.measure.scoring.token_losses import TokenLosses, device_of, token_losses
from txl_lightning.runs.bfloat16 import autocast

RUN = 8  # neighbouring segments of training text, before the next place


@dataclass(frozen=True)
class DynamicEvaluation(StateReuse):
    """Protocol `memory` with weights that learn from every segment once it is scored.

        θ ← θ - η · g / (√MS + ε) + λ · min(√MS / mean(√MS), 1 / λ) · (θ_trained - θ)

    This is the RMS rule with decay (Krause et al. 2018). g is the gradient of the segment's mean loss, over all
    streams, without dropout. MS is the mean square of such gradients on training text, for every weight; mean(√MS) is
    over all weights. The trained model stays as it is: a copy learns, from the trained weights in every split.

    The memory holds hidden states: cached keys and values would be those of earlier weights.

    Args:
        rms: √MS of every weight, from `gradient_rms`.
        lr: η.
        decay: λ.
        epsilon: ε.
    """

    rms: tuple[Tensor, ...] = field(repr=False, kw_only=True)
    lr: float = field(kw_only=True)
    decay: float = field(kw_only=True)
    epsilon: float = field(kw_only=True)

    def score(self, split: str) -> TokenLosses:
        streams = evaluation_streams(self.corpus, split, self.evaluation, extended_context(self.trained.config))
        return token_losses(self.model(), streams, self.evaluation.max_segments, self._losses)

    def lengths(self) -> dict[str, Any]:
        return {**super().lengths(), "dynamic": {name: getattr(self, name) for name in ("lr", "decay", "epsilon")}}

    def _losses(self, model: Any, streams: Streams, max_segments: int | None) -> Iterator[Tensor]:
        """Yield the nll of every segment, [B, T], in nats; the weights learn from it before the next one is scored."""
        model, trained, state = copy.deepcopy(model), _weights(model), None
        mean = torch.cat([rms.flatten() for rms in self.rms]).mean()
        rates = [self.lr / (rms + self.epsilon) for rms in self.rms]
        decays = [(self.decay * rms / mean).clamp(max=1.0) for rms in self.rms]
        for index in range(min(len(streams), max_segments or len(streams))):
            nll_BT, state = _score(model, streams[index], state)
            yield nll_BT.detach()
            steps = zip(_weights(model), _gradients(nll_BT, model), rates, decays, trained, strict=True)
            with torch.no_grad():
                for weight, gradient, rate, decay, origin in steps:
                    weight += decay * (origin - weight) - rate * gradient


def gradient_rms(protocol: StateReuse, corpus: Corpus, n_segments: int) -> tuple[Tensor, ...]:
    """Return √MS of every weight: the root mean square of its gradients in segments of training text.

    Segments are read in runs of neighbours, spread evenly over the split, each run after a memory's length of text.

    Args:
        protocol: streams, segments and memory are those of evaluation.
        corpus: that of the training.
        n_segments: number of segments, in whole runs.
    """
    model, given = protocol.model(), protocol.evaluation
    streams = evaluation_streams(corpus, "train", given, extended_context(protocol.trained.config))
    before = -(-protocol.lengths().get("mem_len", 0) // given.segment_len)
    length = min(RUN, n_segments, len(streams))
    firsts = np.linspace(0, len(streams) - length, -(-min(n_segments, len(streams)) // length), dtype=int)
    squares = [torch.zeros_like(weight) for weight in _weights(model)]
    with autocast(protocol.precision, device_of(model)):
        for first in firsts:
            state = None
            for index in range(max(0, first - before), first + length):
                nll_BT, state = _score(model, streams[index], state)
                if index >= first:
                    for square, gradient in zip(squares, _gradients(nll_BT, model), strict=True):
                        square.addcmul_(gradient, gradient)
    return tuple((square / (length * len(firsts))).sqrt() for square in squares)


def dynamic_evaluation(
    protocol: StateReuse, corpus: Corpus, options: DynamicOptions, search_tokens: int | None
) -> tuple[DynamicEvaluation, dict[str, Any]]:
    """Return the protocol at the given rates, or at those with the lowest loss on validation.

    Args:
        protocol: the same, static.
        corpus: that of the training.
        options: rates, or grid.
        search_tokens: tokens of validation to search on, from its start; None for all.

    Returns:
        The protocol, and the entry `dynamic` of `evaluation.json` (see `perplexity.command`).
    """
    rates: dict[str, Any] = {"lr": options.lr or 0.0, "decay": options.decay, "epsilon": options.epsilon}
    dynamic = DynamicEvaluation(**vars(protocol), rms=gradient_rms(protocol, corpus, options.segments), **rates)
    rows: list[dict[str, Any]] = []
    for lr, decay in product(options.lrs, options.decays) if options.search else ():
        searched = replace(dynamic, lr=lr, decay=decay)
        nll = (searched if search_tokens is None else searched.first(search_tokens)).losses("valid").mean
        rows.append({"lr": lr, "decay": decay, "nll": nll if math.isfinite(nll) else None})
    if rows:
        best = min(rows, key=lambda row: math.inf if row["nll"] is None else row["nll"])
        dynamic = replace(dynamic, lr=best["lr"], decay=best["decay"])
    return dynamic, {**dynamic.lengths()["dynamic"], "segments": options.segments, "search": rows}


def dynamic_scores(
    static: ScoringProtocol, dynamic: DynamicEvaluation, scores: SplitScores, files: Path | None
) -> dict[str, Any]:
    """Return the entry `dynamic` of a split in `evaluation.json` (see `perplexity.command`).

    Args:
        static: protocol with the trained weights.
        dynamic: the same, with weights that learn.
        scores: scores of the split.
        files: folder for the losses of all tokens; None to write none.

    Raises:
        OptionError: the learning rate is too large.
    """
    before, after = scores.losses(static), scores.losses(dynamic)
    allowed = f"is too large: the loss of {scores.split} is not finite"
    require(math.isfinite(after.mean), "dynamic.lr", dynamic.lr, allowed)
    below = difference(before, after, scores.units(before)[0], scores.level)
    name = f"losses_{scores.split}_dynamic.npz"
    losses = {} if files is None else {"losses": scores.write(dynamic, files / name)}
    return {**scores.values(after), "below_static": below, **losses}


def difference_line(split: str, below: dict[str, Any]) -> str:
    """Return one line: how far the loss of dynamic evaluation is below that of static, with a 95 % interval."""
    unit = "ppl" if "ppl" in below else "bpc"
    gain, error = below[unit], below["standard_error"][unit]
    ends = "" if error is None else f", 95 % interval {gain - NORMAL_95 * error:.4f} to {gain + NORMAL_95 * error:.4f}"
    return f"{split}: dynamic evaluation is {gain:.4f} {unit} below static{ends} (paired by token)"


def _score(model: Any, segment: Segment, state: Any) -> Any:
    device = device_of(model)
    return model.score(segment.tokens.to(device), segment.targets.to(device), state)


def _weights(model: Any) -> list[Tensor]:
    return [weight for weight in model.parameters() if weight.requires_grad]


def _gradients(nll_BT: Tensor, model: Any) -> tuple[Tensor, ...]:
    gradients = torch.autograd.grad(nll_BT.mean(), _weights(model), materialize_grads=True)
    torch.clear_autocast_cache()  # it keeps weights in bfloat16, which the next update makes stale
    return gradients
