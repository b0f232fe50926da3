"""Checkpoints of our own runs: recognised, checked and turned into a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from txl_lightning.config.schemas import Config, from_plain
from txl_lightning.data.vocabulary.symbols import Vocabulary
from txl_lightning.errors import OptionError
from txl_lightning.runs.models import Model, make_model
from txl_lightning.runs.storage import DamagedFileError, read_file


@dataclass(frozen=True)
class TrainedModel:
    """What a checkpoint holds for everything but going on with training."""

    model: Model
    config: Config
    vocabulary: Vocabulary
    step: int


def read_checkpoint(path: str | Path, option: str = "checkpoint") -> dict[str, Any]:
    """The contents of a checkpoint of `txl train`, on the CPU, without running any code in it.

    Raises:
        OptionError: the file is missing, damaged, no checkpoint, or not one of `txl train`.
    """
    if not Path(path).is_file():
        raise OptionError(option, path, "no such file")
    try:
        contents = read_file(path)
    except (DamagedFileError, OSError) as error:
        raise OptionError(option, path, str(error)) from error
    record = contents.get("txl_lightning") if isinstance(contents, dict) else None
    if not isinstance(record, dict) or not {"config", "vocabulary"} <= set(record):
        raise OptionError(option, path, "is not a checkpoint of txl train")
    return contents


def load_trained(path: str | Path, option: str = "checkpoint") -> TrainedModel:
    """The model of a checkpoint in evaluation mode, with the configuration and vocabulary of its run.

    Raises:
        OptionError: as `read_checkpoint`, or its encoding is not known here (`own_encodings`).
    """
    contents = read_checkpoint(path, option)
    record = contents["txl_lightning"]
    config = from_plain(record["config"])
    vocabulary = Vocabulary.from_state_dict(record["vocabulary"])
    try:
        model = make_model(config, len(vocabulary))
    except OptionError as error:  # an encoding of the user's own that is not there
        raise OptionError(option, path, str(error)) from error
    model.load_state_dict(model_weights(contents))
    return TrainedModel(model.eval(), config, vocabulary, int(contents["global_step"]))


def model_weights(contents: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The model's weights under its own names, out of the LightningModule's."""
    prefix = "model."
    state = contents["state_dict"].items()
    return {name.removeprefix(prefix): tensor for name, tensor in state if name.startswith(prefix)}
