"""A model small enough for exact comparisons in float64, and tokens for it."""

import itertools
from typing import Any

import torch
from torch import Tensor

from txl_lightning import Memory, TransformerXL

VOCABULARY = 11
SIZES = {"vocab_size": VOCABULARY, "n_layer": 2, "d_model": 8, "n_head": 2, "d_head": 3, "d_inner": 12}
SUBSETS = ["".join(terms) for n in range(5) for terms in itertools.combinations("abcd", n)]  # of the terms
ENCODINGS: dict[str, dict[str, Any]] = {
    "relative": {},
    "shaw": {"encoding": "shaw", "table_len": 5},
    "absolute": {"encoding": "absolute"},
    "al_rfou": {"encoding": "al_rfou", "table_len": 4},
    "alibi": {"encoding": "alibi"},
    "none": {"encoding": "none"},
    "rope": {"encoding": "rope", "d_head": 4},
}


def tiny_model(model_class: type[TransformerXL] = TransformerXL, **options: object) -> Any:
    """A float64 model without dropout, whose parameters are not small."""
    config = model_class.config_class(**{**SIZES, "dropout": 0.0, "mem_len": 4, **options})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = model_class(config).double()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.4 * torch.randn_like(parameter))
    return model


def random_stream(n_streams: int, length: int, vocab_size: int = VOCABULARY) -> Tensor:
    """Tokens [B, time]."""
    return torch.randint(vocab_size, (n_streams, length), generator=torch.Generator().manual_seed(1))


def score_segments(
    model: TransformerXL, stream: Tensor, segments: list[int] | int, memory: Memory | None = None
) -> tuple[Tensor, Memory]:
    """Losses of all targets of the stream, cut into segments of these lengths, and the last memory."""
    losses = []
    for tokens, targets in zip(stream[:, :-1].split(segments, 1), stream[:, 1:].split(segments, 1), strict=True):
        nll, memory = model.score(tokens, targets, memory)
        losses.append(nll)
    return torch.cat(losses, dim=1), memory
