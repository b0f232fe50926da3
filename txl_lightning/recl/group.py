"""Group of models that `txl recl` compares."""

from __future__ import annotations

import re
from collections.abc import Sequence
from glob import glob
from pathlib import Path

from txl_lightning.errors import require
from txl_lightning.evaluation.commands import chosen_device
from txl_lightning.recl.huggingface import load_huggingface
from txl_lightning.recl.models import (
    FUNCTION,
    HUGGING_FACE,
    OPTION,
    TRAINED,
    Member,
    load_function,
    load_run,
)
from txl_lightning.recl.options import ReclOptions

# Parts of a checkpoint's path that can name it, without the folder checkpoints: the run, the run and the file, …
NAMES = (
    slice(-2, -1),
    slice(-2, None),
    slice(-3, -1),
    slice(-3, None),
)


def references(options: ReclOptions) -> list[str]:
    """Return the references of all models, `checkpoints` first, a pattern such as `run/step*.ckpt` as its files.

    Raises:
        OptionError: there is none, one is named twice, or a reference has no known prefix.
    """
    for model in options.models:
        known = model.startswith((TRAINED, HUGGING_FACE, FUNCTION))
        require(known, OPTION, model, "must begin with txl:, hf: or py:")
    named: list[str] = []
    for pattern in options.checkpoints:
        named.extend(f"{TRAINED}{path}" for path in _files(pattern))
    named.extend(options.models)
    require(len(named) > 0, "checkpoints", "[]", "must name at least one checkpoint")
    option = "checkpoints" if options.checkpoints else OPTION
    for reference in named:
        is_single = named.count(reference) == 1
        require(is_single, option, [reference.removeprefix(TRAINED)], "is named twice")
    return named


def _files(pattern: str) -> list[str]:
    """Return the files of a pattern, with numbers in names in their order; a path without files stays as it is."""
    if Path(pattern).is_file():
        return [pattern]
    paths = glob(str(Path(pattern).expanduser()))
    return sorted(paths, key=_by_numbers) or [pattern]


def _by_numbers(path: str) -> list[tuple[int, str]]:
    return [(len(part), part) for part in re.findall(r"\d+|\D+", path)]


def load_group(options: ReclOptions, longest_context: int) -> list[Member]:
    """Load all models, in evaluation mode, on the chosen device.

    Raises:
        OptionError: a model is not usable.
    """
    named = references(options)
    device = chosen_device(options.accelerator)
    members = []
    for reference, name in zip(named, options.names or model_names(named), strict=True):
        if reference.startswith(TRAINED):
            option = OPTION if reference in options.models else "checkpoints"
            path = reference.removeprefix(TRAINED)
            member = load_run(path, name, options.clamp_len, option)
        elif reference.startswith(HUGGING_FACE):
            member = load_huggingface(
                reference, name, longest_context, options.begin_of_text, options.tokenizer
            )
        else:
            member = load_function(reference, name)
        if hasattr(member.reader.model, "to"):
            member.reader.model.to(device)
        members.append(member)
    return members


def model_names(named: Sequence[str]) -> list[str]:
    """Return the shortest distinct names: `txl:ours/checkpoints/best.ckpt` is `ours`, or `ours/best`; `hf:a/b` is `b`.

    The references themselves if some names are still equal.
    """
    for part in NAMES:
        names = [_name(reference, part) for reference in named]
        if "" not in names and len(set(names)) == len(names):
            return names
    return list(named)


def _name(reference: str, part: slice) -> str:
    if not reference.startswith(TRAINED):
        return reference.rstrip("/").split(":")[-1].split("/")[-1]
    path = Path(reference.removeprefix(TRAINED)).resolve().with_suffix("")
    folders = [folder for folder in path.parts[1:] if folder != "checkpoints"]
    return "/".join(folders[part])
