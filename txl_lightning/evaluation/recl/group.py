"""Group of models whose RECL is compared: their checkpoints, names and common corpus."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from txl_lightning.config.lengths import extended_context, trained_clamp
from txl_lightning.config.schemas import RecurrentModelConfig
from txl_lightning.data.corpora.corpus import Corpus
from txl_lightning.errors import OptionError
from txl_lightning.evaluation.recl.options import ReclOptions
from txl_lightning.evaluation.scoring.device import chosen_device
from txl_lightning.evaluation.scoring.windows import WindowReader, window_reader
from txl_lightning.files import file_checksum
from txl_lightning.runs.corpora import checkpoint_corpus
from txl_lightning.runs.trained import TrainedModel, load_trained


@dataclass(frozen=True)
class Member:
    """One model of a group.

    Args:
        name: name in tables and figures.
        path: path of the checkpoint.
        checksum: SHA-256 of the checkpoint file.
        trained: contents of the checkpoint.
        reader: reader of windows.
        clamp_len: larger distances share one position; None for a recurrent model.
    """

    name: str
    path: str
    checksum: str
    trained: TrainedModel
    reader: WindowReader
    clamp_len: int | None

    @property
    def kind(self) -> str:
        """Size, encoding and recurrence, in words."""
        config = self.trained.config
        if isinstance(config.model, RecurrentModelConfig):
            return config.model.name
        memory = f"memory {config.memory.mem_len}" if config.memory.mem_len else "no recurrence"
        return f"{config.model.name}, {config.encoding.name}, {memory}"


def load_group(options: ReclOptions) -> list[Member]:
    """Load the models of all checkpoints, in evaluation mode, on the chosen device.

    Raises:
        OptionError: a checkpoint is not usable.
    """
    device = chosen_device(options.accelerator)
    members = []
    for path, name in zip(options.checkpoints, options.names or run_names(options.checkpoints), strict=True):
        trained = load_trained(path, option="checkpoints")
        config = trained.config
        clamp_len = trained_clamp(config)
        if clamp_len is not None and options.clamp_len is not None:
            clamp_len = options.clamp_len
        trained.model.to(device)
        reader = window_reader(trained.model, config.data.segment_len + extended_context(config), clamp_len)
        members.append(Member(name, path, file_checksum(path), trained, reader, clamp_len))
    return members


def run_names(paths: list[str]) -> list[str]:
    """Return the shortest distinct names: `ours/checkpoints/best.ckpt` becomes `ours`, or `ours/best`."""
    files = [Path(path).resolve().with_suffix("") for path in paths]
    parts = [[part for part in file.parts[1:] if part != "checkpoints"] for file in files]
    for start in range(-2, -max(map(len, parts)) - 1, -1):
        for stop in (-1, None):
            names = ["/".join(of_path[start:stop]) for of_path in parts]
            if len(set(names)) == len(names) and all(names):
                return names
    return paths


def common_corpus(members: list[Member], data_path: str | None) -> Corpus:
    """Load the corpus of all members, or the text `data_path`.

    Raises:
        UserError: a corpus cannot be loaded, or the members have different corpora or vocabularies.
    """
    corpora = [checkpoint_corpus(m.trained, m.path, data_path, option="checkpoints") for m in members]
    first = corpora[0]
    for member, corpus in zip(members, corpora, strict=True):
        if corpus.checksum != first.checksum:
            allowed = f"was trained on another corpus ({corpus.name}) than {members[0].path} ({first.name})"
            raise OptionError("checkpoints", member.path, allowed)
        if corpus.vocabulary != first.vocabulary:
            allowed = f"was trained with another vocabulary than {members[0].path}"
            raise OptionError("checkpoints", member.path, allowed)
    return first
