"""Group of models whose RECL is compared: checkpoints of runs and models from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path

from txl_lightning.config.lengths import extended_context, longest_trained_distance, trained_clamp
from txl_lightning.config.schemas import RecurrentModelConfig
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.evaluation.language_models.huggingface_loading import load_huggingface
from txl_lightning.evaluation.language_models.outside import OPTION, OutsideModel, load_function
from txl_lightning.evaluation.language_models.tokenized_text import TokenizedText, with_vocabulary
from txl_lightning.evaluation.recl.options import ReclOptions
from txl_lightning.evaluation.scoring.device import chosen_device
from txl_lightning.evaluation.scoring.windows import WindowReader, window_reader
from txl_lightning.files import file_checksum
from txl_lightning.runs.trained import TrainedModel, load_trained

TRAINED, HUGGING_FACE, FUNCTION = PREFIXES = ("txl:", "hf:", "py:")


@dataclass(frozen=True)
class Member:
    """One model of a group: of a run, or from elsewhere.

    Args:
        name: name in tables and figures.
        path: path of the checkpoint, or the reference `hf:NAME` or `py:module.function`.
        checksum: SHA-256 of the checkpoint file or of the weights; None if losses are not to be stored.
        reader: reader of windows.
        trained: contents of the checkpoint; None for a model from elsewhere.
        outside: model from elsewhere; None for a checkpoint.
        clamp_len: larger distances share one position; None for other models than Transformer-XL.
    """

    name: str
    path: str
    checksum: str | None
    reader: WindowReader
    trained: TrainedModel | None = None
    outside: OutsideModel | None = None
    clamp_len: int | None = None

    @property
    def kind(self) -> str:
        """Size, encoding and recurrence, in words."""
        if self.trained is None:
            return self.outside.kind if self.outside else ""
        config = self.trained.config
        if isinstance(config.model, RecurrentModelConfig):
            return config.model.name
        memory = f"memory {config.memory.mem_len}" if config.memory.mem_len else "no recurrence"
        if config.memory.compression is not None:
            memory += (
                f" and {config.memory.compressed_len} compressed {config.memory.rate}:1 ({config.memory.compression})"
            )
        return f"{config.model.name}, {config.encoding.name}, {memory}"

    @property
    def tokens_trained(self) -> int | None:
        """Tokens read in training: steps · streams · segment; None for a model from elsewhere."""
        data = self.trained.config.data if self.trained else None
        return self.trained.step * data.batch_size * data.segment_len if self.trained and data else None

    @property
    def trained_len(self) -> int | None:
        """Tokens that a token saw in training: segment, extended context and memory; the positions of other models."""
        if self.trained is None:
            return self.reader.limit
        config = self.trained.config
        if isinstance(config.model, RecurrentModelConfig):
            return config.data.segment_len
        return longest_trained_distance(config) + 1

    @property
    def option(self) -> str:
        """Option that named the model, for errors."""
        return "checkpoints" if self.trained else OPTION

    @property
    def begin_of_text(self) -> int | None:
        """Token read before every window; None for none."""
        return self.outside.begin_of_text if self.outside else None

    def tokenize(self, content: bytes) -> TokenizedText:
        """Return the tokens of a text.

        Raises:
            OptionError: the model cannot read it.
        """
        if self.outside:
            return self.outside.tokenize(content)
        assert self.trained
        try:
            return with_vocabulary(self.trained.vocabulary, content, self.trained.closed_sentences)
        except UserError as error:
            raise OptionError(self.option, self.path, str(error)) from error


def references(options: ReclOptions) -> list[str]:
    """Return the references of all models, `checkpoints` first, a pattern such as `run/step*.ckpt` as its files.

    Raises:
        OptionError: there is none, one is named twice, or a reference has no known prefix.
    """
    for model in options.models:
        require(model.startswith(PREFIXES), OPTION, model, "must begin with txl:, hf: or py:")
    paths = [file for path in options.checkpoints for file in _files(path)]
    named = [*(f"{TRAINED}{path}" for path in paths), *options.models]
    require(bool(named), "checkpoints", "[]", "must name at least one checkpoint")
    twice = [reference.removeprefix(TRAINED) for reference in named if named.count(reference) > 1]
    require(not twice, "checkpoints" if options.checkpoints else OPTION, twice[:1], "is named twice")
    return named


def _files(path: str) -> list[str]:
    """Return the files of a pattern, with numbers in names in their order; a path without files stays as it is."""
    found = [] if Path(path).is_file() else glob(str(Path(path).expanduser()))
    return sorted(found, key=lambda name: [(len(n), n) for n in re.findall(r"\d+|\D+", name)]) or [path]


def load_group(options: ReclOptions) -> list[Member]:
    """Load all models, in evaluation mode, on the chosen device.

    Raises:
        OptionError: a model is not usable.
    """
    named = references(options)
    loaders = {TRAINED: _trained_member, HUGGING_FACE: _outside_member, FUNCTION: _outside_member}
    members = []
    for reference, name in zip(named, options.names or model_names(named), strict=True):
        prefix = next(prefix for prefix in PREFIXES if reference.startswith(prefix))
        members.append(loaders[prefix](reference, name, options))
    return members


def _trained_member(reference: str, name: str, options: ReclOptions) -> Member:
    path = reference.removeprefix(TRAINED)
    trained = load_trained(path, option="checkpoints")
    config = trained.config
    clamp_len = trained_clamp(config)
    if clamp_len is not None and options.clamp_len is not None:
        clamp_len = options.clamp_len
    trained.model.to(chosen_device(options.accelerator))
    reader = window_reader(trained.model, config.data.segment_len + extended_context(config), clamp_len)
    return Member(name, path, file_checksum(path), reader, trained, clamp_len=clamp_len)


def _outside_member(reference: str, name: str, options: ReclOptions) -> Member:
    prefix, _, rest = reference.partition(":")
    if prefix == HUGGING_FACE[:-1]:
        outside = load_huggingface(rest, options.begin_of_text, options.dtype)
    else:
        outside = load_function(rest)
    if hasattr(outside.model, "to"):
        outside.model.to(chosen_device(options.accelerator))
    reader = WindowReader(outside.model, limit=outside.limit, one_pass=outside.one_pass)
    return Member(name, reference, outside.checksum, reader, outside=outside)


def model_names(named: Sequence[str]) -> list[str]:
    """Return a short name for each reference: that of a run's directory, or the end of a name on the hub."""
    paths = [reference.removeprefix(TRAINED) for reference in named if reference.startswith(TRAINED)]
    of_runs = iter(run_names(paths))
    names = [next(of_runs) if r.startswith(TRAINED) else r.rstrip("/").split(":")[-1].split("/")[-1] for r in named]
    return names if len(set(names)) == len(names) else list(named)


def run_names(paths: list[str]) -> list[str]:
    """Return the shortest distinct names: `ours/checkpoints/best.ckpt` becomes `ours`, or `ours/best`."""
    if not paths:
        return []
    files = [Path(path).resolve().with_suffix("") for path in paths]
    parts = [[part for part in file.parts[1:] if part != "checkpoints"] for file in files]
    for start in range(-2, -max(map(len, parts)) - 1, -1):
        for stop in (-1, None):
            names = ["/".join(of_path[start:stop]) for of_path in parts]
            if len(set(names)) == len(names) and all(names):
                return names
    return paths
