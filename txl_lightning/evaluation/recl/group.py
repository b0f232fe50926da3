"""Group of models whose RECL is compared, checkpoints of runs and models from elsewhere, and the text they read."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from glob import glob
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.config.lengths import extended_context, longest_trained_distance, trained_clamp
from txl_lightning.config.schemas import DataConfig, RecurrentModelConfig
from txl_lightning.data.corpus import Corpus, split_bytes
from txl_lightning.data.documents import without_marks
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.evaluation.language_models.huggingface import load_huggingface
from txl_lightning.evaluation.language_models.outside import OPTION, OutsideModel, load_function
from txl_lightning.evaluation.language_models.tokenized_text import (
    TokenizedText,
    common_pieces,
    whole_characters,
    with_vocabulary,
)
from txl_lightning.evaluation.recl.options import ReclOptions
from txl_lightning.evaluation.scoring.option_checks import chosen_device
from txl_lightning.evaluation.scoring.windows import Integers, WindowReader, window_reader
from txl_lightning.files import file_checksum
from txl_lightning.runs.trained import TrainedModel, checkpoint_corpus, load_trained, report_if_changed

TRAINED, HUGGING_FACE, FUNCTION = PREFIXES = ("txl:", "hf:", "py:")
CONTEXT_UNITS = ("token", "byte")
TOKENS_AT_ONCE = 1 << 20


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


@dataclass(frozen=True)
class GroupText:
    """Text of a group.

    Args:
        name: name of the corpus.
        checksum: SHA-256 of the corpus or of the text.
        level: byte, char, word or token; losses are per unit of it.
        of_member: tokens of the text, by name of the model.
        pieces: bounds of the pieces of text that models are compared on, in bytes; None if all have the same tokens.
        content: bytes of the text; None if it is that of an encoded corpus.
    """

    name: str
    checksum: str
    level: str
    of_member: dict[str, TokenizedText]
    pieces: Integers | None = None
    content: bytes | None = None

    @property
    def length(self) -> int:
        """Number of positions: bytes with `pieces`, tokens without."""
        first = next(iter(self.of_member.values()))
        return len(first.tokens) if self.pieces is None else first.n_bytes

    def description(self) -> dict[str, Any]:
        """Return the entry `corpus` of `recl.json`."""
        return {"name": self.name, "sha256": self.checksum, "level": self.level}


def group_text(members: Sequence[Member], options: ReclOptions) -> GroupText:
    """Load the text of all members and its tokens.

    Checkpoints bring their corpus. Without any, or with `data_path`, it is that file.

    Raises:
        UserError: the text cannot be loaded, the members have different corpora, or they have different tokenizers or
            tokens and contexts are not counted in bytes.
    """
    by_bytes = options.context_unit == "byte"
    if not by_bytes and all(member.trained for member in members):
        corpora = common_corpora(members, options.data_path)
        tokens = [corpus.splits[options.split] for corpus in corpora]
        for member, own in zip(members, tokens, strict=True):
            allowed = f"reads other tokens than {members[0].path}: the starts of documents (data.document_start) or "
            allowed += "sentences (data.sentence_marks) differ and shift the positions"
            require(_same_tokens(own, tokens[0]), "checkpoints", member.path, allowed)
        of_each = {m.name: TokenizedText(own, None, len(own)) for m, own in zip(members, tokens, strict=True)}
        return GroupText(corpora[0].name, corpora[0].checksum, corpora[0].vocabulary.level, of_each)
    for member in members:
        resets = member.trained is not None and member.trained.config.memory.reset == "document"
        allowed = "has memory.reset=document, which needs context_unit=token and a group of checkpoints alone"
        require(not resets, member.option, member.path, allowed)
    name, content = _content(members, options)
    of_member = {member.name: member.tokenize(content) for member in members}
    checksum = hashlib.sha256(content).hexdigest()
    if by_bytes:
        return GroupText(name, checksum, "byte", of_member, _pieces(members, of_member), content)
    first = members[0]
    for member in members:
        if not of_member[member.name].agrees_with(of_member[first.name]):
            allowed = f"has another tokenizer than {first.path}: compare them with context_unit=byte"
            raise OptionError(member.option, member.path, allowed)
    levels = [member.trained.vocabulary.level for member in members if member.trained]
    single_bytes = all(len(tokens.tokens) == tokens.n_bytes for tokens in of_member.values())
    level = levels[0] if levels else "byte" if single_bytes else "token"
    return GroupText(name, checksum, level, of_member, content=content)


def common_corpora(members: Sequence[Member], data_path: str | None) -> list[Corpus]:
    """Load the corpus of all members, which are of runs, or the text `data_path`, as each member reads it.

    For a member with `memory.reset=document` the first token of every document is marked.

    Raises:
        UserError: a corpus cannot be loaded, or the members have different corpora or vocabularies.
    """
    trained = [(member, member.trained) for member in members if member.trained]
    corpora = [checkpoint_corpus(t, member.path, data_path, option="checkpoints") for member, t in trained]
    first = corpora[0]
    for member, corpus in zip(members, corpora, strict=True):
        levels = corpus.vocabulary.level, first.vocabulary.level
        if levels[0] != levels[1]:
            allowed = f"reads {levels[0]} tokens, {members[0].path} {levels[1]} tokens: use context_unit=byte"
            raise OptionError("checkpoints", member.path, allowed)
        if corpus.checksum != first.checksum:
            allowed = f"was trained on another corpus ({corpus.name}) than {members[0].path} ({first.name})"
            raise OptionError("checkpoints", member.path, allowed)
        if corpus.vocabulary != first.vocabulary:
            allowed = f"was trained with another vocabulary than {members[0].path}"
            raise OptionError("checkpoints", member.path, allowed)
    return corpora


def _same_tokens(tokens: np.ndarray, others: np.ndarray) -> bool:
    """Return whether two members read the same tokens, apart from the marks of documents."""
    parts = (slice(start, start + TOKENS_AT_ONCE) for start in range(0, len(tokens), TOKENS_AT_ONCE))
    same_length = len(tokens) == len(others)
    return same_length and all(np.array_equal(without_marks(tokens[p]), without_marks(others[p])) for p in parts)


def _content(members: Sequence[Member], options: ReclOptions) -> tuple[str, bytes]:
    """Return the name and the bytes of the text; of UTF-8 text without a character that is cut at either end."""
    configs = [(member, member.trained.config.data) for member in members if member.trained]
    if options.data_path is not None:
        data = replace(configs[0][1] if configs else DataConfig(), name="file", path=options.data_path, level="byte")
        configs = [(members[0], data)]
    require(bool(configs), "data_path", None, "must be a text file: no checkpoint brings a corpus")
    texts = []
    for member, data in configs:
        try:
            name, checksum, content = split_bytes(data, options.split)
        except OptionError as error:
            option = "data_path" if error.option == "data.path" else error.option
            raise OptionError(option, error.value, error.allowed) from error
        if options.data_path is None and member.trained:
            report_if_changed(member.trained, f"checkpoints={member.path}", name, checksum)
        texts.append((member, name, content))
    first, name, content = texts[0]
    for member, other_name, other in texts:
        allowed = f"was trained on another corpus ({other_name}) than {first.path} ({name})"
        require(other == content, "checkpoints", member.path, allowed)
    try:
        content = whole_characters(content).encode()
    except UserError as error:
        if any(member.path.startswith(HUGGING_FACE) for member in members):
            option = "data_path" if options.data_path else OPTION
            raise OptionError(option, options.data_path or name, str(error)) from error
    return name, content


def _pieces(members: Sequence[Member], of_member: dict[str, TokenizedText]) -> Integers:
    for member in members:
        allowed = f"the tokens of {member.path} do not give back every byte of the text"
        require(of_member[member.name].starts is not None, "context_unit", "byte", allowed)
    return common_pieces(list(of_member.values()))
