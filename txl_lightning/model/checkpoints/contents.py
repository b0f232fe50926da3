"""Comparison of the weights of other implementations with those expected, before any of them is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from txl_lightning.errors import UserError

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class CheckpointError(UserError, ValueError):
    """A checkpoint that does not hold what it should, or a model that another format cannot hold."""


def check(found: Mapping[str, Any], like: Mapping[str, Tensor]) -> None:
    """Check that these are the weights of `like`, whose tensors may be on the meta device: floats of the same shapes.

    Raises:
        CheckpointError: they are not, or they are not finite; says which.
    """
    for name, tensor in found.items():
        if name not in like:
            raise CheckpointError(f"has {name}, which does not belong there")
        if tensor.dtype not in FLOATS:
            raise CheckpointError(f"{name} has numbers of type {tensor.dtype}, not {like[name].dtype}")
        if tensor.shape != like[name].shape:
            raise CheckpointError(f"{name} has shape {list(tensor.shape)}, the config says {list(like[name].shape)}")
        if not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(f"has weights that are not finite ({name}): its training diverged")


def shapes_of(build: Callable[[], nn.Module]) -> dict[str, Tensor]:
    """Return the `state_dict` of a model on the meta device, which takes no memory but for the modules themselves.

    Raises:
        UserError: a tensor would be larger than any memory.
    """
    try:
        with torch.device("meta"):
            return build().state_dict()
    except RuntimeError as error:
        if "overflow" not in str(error):
            raise
        raise UserError(f"a model of these sizes fits into no memory ({error})") from error
