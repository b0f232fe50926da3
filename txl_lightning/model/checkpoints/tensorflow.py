"""Variables of the paper's TensorFlow code: what they say about the architecture, and its missing projections."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from txl_lightning.model.checkpoints.contents import CheckpointError

SCOPE = "transformer/"
EMBEDDING, SOFTMAX = SCOPE + "adaptive_embed/", SCOPE + "adaptive_softmax/"
LAYER = re.compile(SCOPE + r"layer_(\d+)/")
DETERMINED = ("n_token", "n_layer", "d_model", "d_embed", "n_head", "d_head", "d_inner", "untie_r", "cutoffs")
WIDENED = (torch.float16, torch.bfloat16)


def ignored_variables(names: Iterable[str]) -> list[str]:
    """Return variables that are not of the model: outside its scope (`global_step`) or below another one (`…/Adam`)."""
    known = set(names)
    slots = {name for name in known if any(name[: m.start()] in known for m in re.finditer("/", name))}
    return sorted(slots | {name for name in known if not name.startswith(SCOPE)})


def model_variables(weights: Mapping[str, Tensor | np.ndarray]) -> dict[str, Tensor]:
    """Return the variables of the model by name without `:0`, as tensors of float32 or wider."""
    named = {name.removesuffix(":0"): value for name, value in weights.items()}
    for name in ignored_variables(named):
        del named[name]
    return {name: _as_tensor(value) for name, value in named.items()}


def architecture_flags(variables: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the flags that names and shapes determine: sizes, cut-offs, `div_val`, `untie_r` and `tie_projs`.

    Where the softmax of a cluster has no projection of its own, `tie_projs` says that it shares the embedding's.

    Raises:
        CheckpointError: a variable is missing, or has too few or too many axes.
    """

    def shape(name: str, *n_axes: int) -> tuple[int, ...]:
        if name not in variables:
            raise CheckpointError(f"not a checkpoint of the TensorFlow Transformer-XL: it has no {name!r}")
        found = tuple(variables[name].shape)
        if len(found) not in n_axes:
            raise CheckpointError(f"{name} has shape {list(found)}, which is not that of a Transformer-XL")
        return found

    biases = shape(f"{SCOPE}r_w_bias", 2, 3)
    d_model, _ = shape(f"{SCOPE}layer_0/rel_attn/qkv/kernel", 2)
    clustered = f"{EMBEDDING}cutoff_0/lookup_table" in variables
    tables = clusters(variables, f"{EMBEDDING}cutoff_{{}}/lookup_table") if clustered else [f"{EMBEDDING}lookup_table"]
    sizes, widths = zip(*(shape(name, 2) for name in tables), strict=True)
    n_clusters = max(1, len(clusters(variables, f"{SOFTMAX}cutoff_{{}}/b")))
    heads = [*accumulate(shape(f"{SOFTMAX}cutoff_{i}/b", 1)[0] for i in range(n_clusters))] if n_clusters > 1 else []
    return {
        "n_token": sum(sizes),
        "n_layer": len({match[1] for name in variables if (match := LAYER.match(name))}),
        "d_model": d_model,
        "d_embed": widths[0],
        "n_head": biases[-2],
        "d_head": biases[-1],
        "d_inner": shape(f"{SCOPE}layer_0/ff/layer_1/kernel", 2)[1],
        "untie_r": len(biases) == 3,
        "cutoffs": heads[:-1],
        "div_val": _div_val(widths) if clustered else 1,
        "tie_projs": [f"{SOFTMAX}cutoff_{i}/proj" not in variables for i in range(n_clusters)],
    }


def clusters(names: Iterable[str], pattern: str) -> list[str]:
    """Return the names of a variable in clusters 0, 1, …, as far as there are any."""
    known, found = set(names), list[str]()
    while (name := pattern.format(len(found))) in known:
        found.append(name)
    return found


def model_flags(variables: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags of `config`, as the code's `transformer` takes them, and those that the variables determine.

    Cut-offs may have both ends, as in `corpus-info.json`.

    Raises:
        CheckpointError: a flag of `config` contradicts the variables, or a variable is missing.
    """
    given, found = {name: value for name, value in config.items() if value is not None}, architecture_flags(variables)
    if (cutoffs := list(given.get("cutoffs", ())))[:1] == [0]:
        given["cutoffs"] = cutoffs[1:-1]
    for name in DETERMINED:
        if given.get(name, found[name]) != found[name]:
            raise CheckpointError(f"{name}={given[name]}: the variables of the checkpoint say {found[name]}")
    return {**given, **found}


def with_all_projections(
    variables: Mapping[str, Tensor], flags: Mapping[str, Any]
) -> tuple[dict[str, Tensor], list[bool]]:
    """Add the projections that this project's model has and the TensorFlow one leaves out.

    With `proj_same_dim=false` a cluster as wide as the model has none, which is the identity.

    Returns:
        The variables, and for every cluster whether the softmax shares the projection of the embedding. Clusters
        that share it have a copy of their own, for a model that ties in another pattern.
    """
    full, tied, div_val, width = dict(variables), flags["tie_projs"], flags["div_val"], flags["d_embed"]
    if div_val == 1 and width == flags["d_model"]:  # no projections: the pattern is without effect
        return full, [False] + [True] * (len(tied) - 1)
    for i, shared in enumerate(tied):
        embedding = f"{EMBEDDING}proj_W" if div_val == 1 else f"{EMBEDDING}cutoff_{i}/proj_W"
        if div_val > 1 and width // div_val**i == flags["d_model"]:
            full.setdefault(embedding, torch.eye(width, dtype=next(iter(variables.values())).dtype))
        if shared and embedding in full:
            full.setdefault(f"{SOFTMAX}cutoff_{i}/proj", full[embedding])
    return full, tied


def _div_val(widths: tuple[int, ...]) -> int:
    for div_val in range(2, widths[0] + 1):
        if all(width == widths[0] // div_val**i for i, width in enumerate(widths)):
            return div_val
    raise CheckpointError(f"the tables of the clusters have widths {list(widths)}, which no div_val gives")


def _as_tensor(value: Tensor | np.ndarray) -> Tensor:
    tensor = value if isinstance(value, Tensor) else torch.from_numpy(np.require(value, requirements="W"))
    return tensor.float() if tensor.dtype in WIDENED else tensor
