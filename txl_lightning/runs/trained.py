"""Read checkpoints of `txl train`: check that they are ours, and load their models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from txl_lightning.config.schemas import Config, from_plain
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.errors import OptionError, require
from txl_lightning.runs.models import Model, make_model
from txl_lightning.runs.storage import DamagedFileError, read_file


@dataclass(frozen=True)
class TrainedModel:
    """Contents of a checkpoint that evaluation needs: all but the state of training.

    Args:
        model: in evaluation mode, on the CPU.
        config: config of the run.
        vocabulary: vocabulary of its corpus.
        step: optimizer steps trained.
        vocabulary_given: whether the vocabulary is not the corpus' own, so that the text is encoded with it.
        corpus: checksum of the corpus at training; None for weights that were not trained here.
    """

    model: Model
    config: Config
    vocabulary: Vocabulary
    step: int
    vocabulary_given: bool = False
    corpus: str | None = None

    @property
    def closed_sentences(self) -> bool:
        """Whether `<S>` stands at both ends of a sentence (lm1b as the TensorFlow code reads it)."""
        return self.vocabulary.starts_sentences and self.config.data.sentence_marks == "both"


def read_checkpoint(path: str | Path, option: str = "checkpoint") -> dict[str, Any]:
    """Return the contents of a checkpoint of `txl train`, on the CPU, without running code stored in the file.

    Args:
        path: path of the checkpoint.
        option: name of the command-line option that gave the path, for errors.

    Raises:
        OptionError: the file is missing, is damaged, or was not written by `txl train`.
    """
    if not Path(path).is_file():
        folder = "is a folder: give a file in it, such as checkpoints/best.ckpt"
        raise OptionError(option, path, folder if Path(path).is_dir() else "no such file")
    try:
        contents = read_file(path)
    except (DamagedFileError, OSError) as error:
        raise OptionError(option, path, str(error)) from error
    record = contents.get("txl_lightning") if isinstance(contents, dict) else None
    if not isinstance(record, dict) or not {"config", "vocabulary"} <= set(record):
        raise OptionError(option, path, "is not a checkpoint of txl train")
    return contents


def load_trained(path: str | Path, option: str = "checkpoint") -> TrainedModel:
    """Load the model of a checkpoint, with the config and vocabulary of its run.

    Args:
        path: path of the checkpoint.
        option: name of the command-line option that gave the path, for errors.

    Raises:
        OptionError: as `read_checkpoint`, its custom encoding is not registered (see `config.encoding_kinds`), or a
            weight is not finite.
    """
    contents = read_checkpoint(path, option)
    record = contents["txl_lightning"]
    config = from_plain(record["config"])
    vocabulary = Vocabulary.from_state_dict(record["vocabulary"])
    try:
        model = make_model(config, len(vocabulary))
    except OptionError as error:  # a custom encoding that is not registered
        raise OptionError(option, path, str(error)) from error
    weights = model_weights(contents)
    for name, tensor in weights.items():
        allowed = f"has weights that are not finite ({name}): its training diverged"
        require(bool(torch.isfinite(tensor).all()), option, path, allowed)
    model.load_state_dict(weights)
    given = bool(record.get("vocabulary_given", False))
    return TrainedModel(model.eval(), config, vocabulary, int(contents["global_step"]), given, record.get("corpus"))


def model_weights(contents: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the model's weights from a checkpoint, under the model's names instead of the LightningModule's."""
    prefix = "model."
    state = contents["state_dict"].items()
    return {name.removeprefix(prefix): tensor for name, tensor in state if name.startswith(prefix)}
