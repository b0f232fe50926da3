"""Comparison of the contents of a checkpoint with those expected, before any of them is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from txl_lightning.errors import UserError

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class CheckpointError(UserError, ValueError):
    """A checkpoint that does not hold what it should, or a model that another format cannot hold."""


class Each(NamedTuple):
    """A list of any length, at least one, whose members are all like this one."""

    like: Any


def check(found: Any, like: Any, place: str = "", only: bool = False) -> None:
    """Check that `found` has the keys, types and shapes of `like`.

    A float may be an integer, an integer is not negative (unless that of `like` is), and a tensor of floats has finite
    ones, of any precision. Where `like` has a class, `found` is of that class.

    Args:
        found: containers and tensors of a file.
        like: the same with other values; its tensors may be on the meta device.
        place: name of `found`, for the words.
        only: a dictionary has no other keys than those of `like`.

    Raises:
        CheckpointError: it has not; says where.
    """
    if isinstance(like, Tensor):
        return _check_tensor(found, like, place)
    own = next((kind for kind in (dict, Each, tuple, list) if isinstance(like, kind)), type(like))
    kind = like if isinstance(like, type) else list if own in (Each, tuple) else own
    kinds: Any = {float: (float, int), list: (list, tuple)}.get(kind, kind)
    if not issubclass(type(found), kinds) or (isinstance(found, bool) and kind not in (bool, object)):
        raise CheckpointError(f"{place or 'its content'} is of type {type(found).__name__}, not {kind.__name__}")
    if own is int and found < min(like, 0):
        raise CheckpointError(f"{place} is {found}, must be an integer >= {min(like, 0)}")
    if own is Each:
        like = [like.like] * max(1, len(found))
    if kind is list and own is not type:
        if len(found) != len(like):
            raise CheckpointError(f"{place} has {len(found)} entries, not {len(like)}")
        found, like = dict(enumerate(found)), dict(enumerate(like))
    inner = like if isinstance(like, dict) else {}
    name = f"{place}.{{}}" if place else "{}"
    for key in [key for key in found if key not in inner] if only and own is dict else []:
        raise CheckpointError(f"has {name.format(key)}, which does not belong there")
    for key in inner:
        if key not in found:
            raise CheckpointError(f"lacks {name.format(key)}")
        check(found[key], inner[key], name.format(key), only)


def _check_tensor(found: Any, like: Tensor, place: str) -> None:
    if not isinstance(found, Tensor) or found.layout != torch.strided or found.is_meta:
        raise CheckpointError(f"{place} is of type {type(found).__name__}, not an ordinary tensor")
    if found.dtype not in (FLOATS if like.dtype in FLOATS else (like.dtype,)):
        raise CheckpointError(f"{place} has numbers of type {found.dtype}, not {like.dtype}")
    if found.shape != like.shape:
        raise CheckpointError(f"{place} has shape {list(found.shape)}, the config says {list(like.shape)}")
    if found.dtype in FLOATS and not bool(torch.isfinite(found).all()):
        raise CheckpointError(f"has weights that are not finite ({place}): its training diverged")


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
