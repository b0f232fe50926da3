"""Models that `txl recl` compares as a group."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from txl_lightning.errors import require
from txl_lightning.evaluation.commands import chosen_device
from txl_lightning.recl.huggingface import load_huggingface
from txl_lightning.recl.models import (
    CHECKPOINTS,
    FUNCTION,
    HUGGING_FACE,
    MODELS,
    Member,
    load_function,
    load_run,
)
from txl_lightning.recl.options import ReclOptions


def references(options: ReclOptions) -> list[str]:
    """Return the references of all models, `checkpoints` first.

    Raises:
        OptionError: there is none, one is named twice, or a model has no known prefix.
    """
    named = options.checkpoints + options.models
    require(len(named) > 0, CHECKPOINTS, "[]", "must name at least one checkpoint")
    require(
        len(set(named)) == len(named),
        CHECKPOINTS,
        named,
        "must name each model once",
    )
    for model in options.models:
        is_known = model.startswith((HUGGING_FACE, FUNCTION))
        require(is_known, MODELS, model, "must begin with hf: or py:")
    return named


def load_group(options: ReclOptions, longest_context: int) -> list[Member]:
    """Load all models on the chosen device.

    Raises:
        OptionError: a model is not usable.
    """
    device = chosen_device(options.accelerator)
    named = references(options)
    members = []
    for reference, name in zip(
        named,
        options.names or model_names(named),
        strict=True,
    ):
        if reference.startswith(HUGGING_FACE):
            member = load_huggingface(reference, name, longest_context, options.begin_of_text)
        elif reference.startswith(FUNCTION):
            member = load_function(reference, name)
        else:
            member = load_run(reference, name)
        if isinstance(member.reader.model, nn.Module):
            member.reader.model.to(device)
        members.append(member)
    return members


def model_names(named: Sequence[str]) -> list[str]:
    """Return the names of run directories, of models and functions; the references if two are equal."""
    names = []
    for reference in named:
        path = Path(reference.removeprefix(HUGGING_FACE).removeprefix(FUNCTION)).resolve()
        if path.suffix == ".ckpt":
            path = path.parent
        if path.name == "checkpoints":
            path = path.parent
        names.append(path.name)
    if len(set(names)) < len(names):
        return list(named)
    return names
