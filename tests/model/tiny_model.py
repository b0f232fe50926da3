"""A model small enough for exact comparisons in float64, and tokens for it."""

import io
import itertools
from typing import Any

import torch
from torch import Tensor

from txl_lightning import TransformerXL
from txl_lightning.model.baselines import RecurrentConfig, RecurrentLanguageModel
from txl_lightning.variants.compressive import CompressiveTransformerXL
from txl_lightning.variants.memory_tokens import MemoryTokensTransformerXL

VOCABULARY = 11
EXACT = {"rtol": 0, "atol": 1e-9}  # tolerances of a comparison in float64
SIZES = {
    "vocab_size": VOCABULARY,
    "n_layer": 2,
    "d_model": 8,
    "n_head": 2,
    "d_head": 3,
    "d_inner": 12,
}
SUBSETS = [
    "".join(terms) for n in range(5) for terms in itertools.combinations("abcd", n)
]  # of the terms
ENCODINGS = {
    **{name: {"encoding": name} for name in ("relative", "absolute", "alibi", "none")},
    "shaw": {"encoding": "shaw", "table_len": 5},
    "al_rfou": {"encoding": "al_rfou", "table_len": 4},
    "rope": {"encoding": "rope", "d_head": 4},
}

STATEFUL = {  # of every kind of state
    **{name: {**options, "mem_len": 7} for name, options in ENCODINGS.items()},
    "long memory": {"mem_len": 40},
    "no memory": {"mem_len": 0},
    "shaw, same length": {
        **ENCODINGS["shaw"],
        "mem_len": 6,
        "same_length": True,
        "pre_norm": True,
    },
    "zeros": {"mem_len": 6, "memory_start": "zeros"},
    "extended context": {"mem_len": 6, "ext_len": 2, "clamp_len": 3},
    "al_rfou, extended context": {**ENCODINGS["al_rfou"], "mem_len": 6, "ext_len": 2},
    "documents": {"mem_len": 9, "memory_reset": "document"},
    "clusters": {
        "mem_len": 9,
        "cutoffs": (3, 7),
        "div_val": 2,
    },
    "memory tokens": {"model_class": MemoryTokensTransformerXL, "n_tokens": 2, "mem_len": 3},
    "compressive": {
        "model_class": CompressiveTransformerXL,
        "mem_len": 4,
        "rate": 2,
        "compressed_len": 3,
    },
    "lstm": {"cell": "lstm"},
    "qrnn": {"cell": "qrnn"},
}
CACHEABLE = [
    name for name, options in STATEFUL.items() if not {"cell", "model_class"} & options.keys()
]


def tiny_model(model_class: type[TransformerXL] = TransformerXL, **options: object) -> Any:
    """A float64 model without dropout, whose parameters are not small; with `cell` a recurrent one of three layers."""
    sizes = {**SIZES, "dropout": 0.0, "mem_len": 4}
    kind, config_class = model_class, model_class.config_class
    if "cell" in options:
        sizes = {"vocab_size": VOCABULARY, "n_layer": 3, "d_model": 8}
        sizes |= {"dropout": 0.0, "hidden_dropout": 0.0}
        kind, config_class = RecurrentLanguageModel, RecurrentConfig
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = kind(config_class(**{**sizes, **options})).double()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.4 * torch.randn_like(parameter))
    return model


def assert_close(actual: Any, expected: Any, tolerance: float = 1e-9) -> None:
    """Compare two results in float64: tensors, or collections of them."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


def random_stream(n_streams: int, length: int, vocab_size: int = VOCABULARY) -> Tensor:
    """Tokens [B, time]."""
    return torch.randint(
        vocab_size, (n_streams, length), generator=torch.Generator().manual_seed(1)
    )


def unmarked(stream: Tensor) -> Tensor:
    """Return a stream without marks of documents, which targets do not have."""
    return torch.maximum(stream, ~stream)


def assert_same_gradients(
    actual: Tensor, expected: Tensor, inputs: list[Tensor], tolerance: float = 1e-9
) -> None:
    """Compare two results in float64, and the gradients of a random sum of their entries."""
    assert_close(actual, expected, tolerance)
    weights = torch.randn_like(expected)
    options = {"retain_graph": True, "materialize_grads": True}
    ours = torch.autograd.grad(actual, inputs, weights, **options)
    theirs = torch.autograd.grad(expected, inputs, weights, **options)
    assert_close(ours, theirs, tolerance)


def hidden_states(
    model: Any, stream: Tensor, segments: list[int] | int, memory: Any = None
) -> Tensor:
    """Hidden states of all tokens of the stream, cut into segments of these lengths."""
    results = []
    for tokens in stream.split(segments, dim=1):
        hidden, memory = model(tokens, memory)
        results.append(hidden)
    return torch.cat(results, dim=1)


def score_segments(
    model: Any, stream: Tensor, segments: list[int] | int, memory: Any = None
) -> tuple[Tensor, Any]:
    """Losses of all targets of the stream, cut into segments of these lengths, and the last memory."""
    losses = []
    tokens = stream[:, :-1].split(segments, dim=1)
    targets = unmarked(stream)[:, 1:].split(segments, dim=1)
    for segment in zip(tokens, targets, strict=True):
        nll, memory = model.score(*segment, memory)
        losses.append(nll)
    return torch.cat(losses, dim=1), memory


def through_a_file(state: Any) -> Any:
    """Return a state that was saved and loaded."""
    file = io.BytesIO()
    torch.save(state.state_dict(), file)
    file.seek(0)
    return type(state).from_state_dict(torch.load(file, weights_only=True))
