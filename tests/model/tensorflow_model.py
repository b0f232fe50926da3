"""Models as the paper's TensorFlow code makes them, and their variables under its names."""

from itertools import pairwise
from typing import Any

import numpy as np

from tests.model.tiny_model import tiny_model
from txl_lightning import TransformerXL

V = 30
FLAGS = {"mem_len": 5, "same_length": True, "clamp_len": -1}
SUBLAYERS, NORM = (
    {"attention": "rel_attn", "feed_forward": "ff"},
    {"weight": "gamma", "bias": "beta"},
)
PROJECTIONS, LINEAR = (
    {"qkv": "qkv", "position": "r", "output": "o"},
    {"weight": "kernel", "bias": "bias"},
)
LAYER = {
    **{
        f"attention.{ours}.weight": f"rel_attn/{theirs}/kernel"
        for ours, theirs in PROJECTIONS.items()
    },
    **{
        f"feed_forward.{i}.{x}": f"ff/layer_{n}/{y}"
        for i, n in ((0, 1), (3, 2))
        for x, y in LINEAR.items()
    },
    **{
        f"{ours}_norm.{x}": f"{s}/LayerNorm/{y}"
        for ours, s in SUBLAYERS.items()
        for x, y in NORM.items()
    },
}


def tensorflow_like(**options: Any) -> TransformerXL:
    """A tiny model with the mask, start and epsilon of that code."""
    same = {"extra_key": True, "memory_start": "zeros", "layer_norm_epsilon": 1e-12}
    return tiny_model(vocab_size=V, **{**FLAGS, **same, **options})


def variables_of(model: TransformerXL) -> dict[str, np.ndarray]:
    """Variables of the TensorFlow graph by name, whose kernels and projections are transposed."""
    config, state = (
        model.config,
        {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()},
    )
    named = {f"r_{name}_bias": state[f"encoding.{ours}"] for name, ours in (("w", "u"), ("r", "v"))}
    if not config.untie_biases:
        named = {name: value[0] for name, value in named.items()}
    for n in range(config.n_layer):
        for ours, theirs in LAYER.items():
            value = state[f"layers.{n}.{ours}"]
            named[f"layer_{n}/{theirs}"] = value.T if theirs.endswith("kernel") else value
    scope = "adaptive_embed/cutoff_{}/" if config.div_val > 1 else "adaptive_embed/"
    for i in range(len(model.embedding.tables)):
        named[scope.format(i) + "lookup_table"] = state[f"embedding.tables.{i}"]
    for i in range(len(model.embedding.projections)):
        named[scope.format(i) + "proj_W"] = state[f"embedding.projections.{i}"].T
    if not config.cutoffs:
        named["adaptive_softmax/bias"] = state["softmax.bias"]
    else:
        for i, (first, end) in enumerate(pairwise((0, *config.cutoffs, V))):
            named[f"adaptive_softmax/cutoff_{i}/b"] = state["softmax.bias"][first:end]
        for name, ours in (("cluster_W", "cluster_weight"), ("cluster_b", "cluster_bias")):
            named[f"adaptive_softmax/cutoff_0/{name}"] = state[f"softmax.{ours}"]
    for i in model.softmax.projections:
        named[f"adaptive_softmax/cutoff_{i}/proj"] = state[f"softmax.projections.{i}"].T
    return {f"transformer/{name}": value for name, value in named.items()}
