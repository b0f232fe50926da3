"""Models that `txl recl` compares as a group."""

from __future__ import annotations

from collections.abc import Sequence
from glob import glob
from pathlib import Path

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
    """Return all model references, `checkpoints` first; a pattern such as `run/step*.ckpt` becomes its files.

    Raises:
        OptionError: there is none, one is named twice, or a model has no known prefix.
    """
    found: list[str] = []
    for pattern in options.checkpoints:
        paths = [pattern]
        if not Path(pattern).is_file():
            paths = glob(str(Path(pattern).expanduser())) or [pattern]
        found += sorted(paths, key=lambda path: (len(path), path))  # step9 before step10
    for model in options.models:
        is_known = model.startswith((HUGGING_FACE, FUNCTION))
        require(is_known, MODELS, model, "must begin with hf: or py:")
        found.append(model)
    require(len(found) > 0, CHECKPOINTS, "[]", "must name at least one checkpoint")
    for reference in found:
        option = MODELS if reference in options.models else CHECKPOINTS
        require(
            found.count(reference) == 1,
            option,
            [reference],
            "is named twice",
        )
    return found


def load_group(options: ReclOptions, longest_context: int) -> list[Member]:
    """Load all models, in evaluation mode, on the chosen device.

    Raises:
        OptionError: a model is not usable.
    """
    device = chosen_device(options.accelerator)
    named = references(options)
    members = []
    for reference, name in zip(named, options.names or model_names(named), strict=True):
        if reference.startswith(HUGGING_FACE):
            member = load_huggingface(reference, name, longest_context, options.begin_of_text)
        elif reference.startswith(FUNCTION):
            member = load_function(reference, name)
        else:
            member = load_run(reference, name, options.clamp_len)
        if hasattr(member.reader.model, "to"):
            member.reader.model.to(device)
        members.append(member)
    return members


def model_names(named: Sequence[str]) -> list[str]:
    """Return the shortest distinct names: `ours/checkpoints/best.ckpt` is `ours`, or `ours/best`; `hf:a/b` is `b`.

    The references themselves if these are not distinct.
    """
    with_files = []
    without_files = []
    for reference in named:
        if reference.startswith((HUGGING_FACE, FUNCTION)):
            name = reference[3:].rstrip("/").split("/")[-1]
            with_files.append(name)
            without_files.append(name)
        else:
            path = Path(reference).resolve().with_suffix("")
            folders = [folder for folder in path.parts if folder != "checkpoints"]
            with_files.append("/".join(folders[-2:]))
            without_files.append(folders[-2])
    for names in (without_files, with_files):
        if len(set(names)) == len(names):
            return names
    return list(named)
