"""Group of models that `txl recl` compares, and the text that all of them read."""

from __future__ import annotations

import codecs
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from glob import glob
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.config.schemas import DataConfig, file_data
from txl_lightning.data.corpus import WHOLE, split_bytes
from txl_lightning.data.vocabulary import without_marks
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.evaluation.commands import chosen_device
from txl_lightning.evaluation.losses import Integers
from txl_lightning.evaluation.options import ReclOptions
from txl_lightning.recl.loss_by_context import position_blocks
from txl_lightning.recl.models import (
    FUNCTION,
    HUGGING_FACE,
    OPTION,
    TRAINED,
    Member,
    TokenizedText,
    load_function,
    load_huggingface,
    load_run,
)
from txl_lightning.runs.trained import checkpoint_corpus, report_if_changed


def references(options: ReclOptions) -> list[str]:
    """Return the references of all models, `checkpoints` first, a pattern such as `run/step*.ckpt` as its files.

    Raises:
        OptionError: there is none, one is named twice, or a reference has no known prefix.
    """
    for model in options.models:
        known = model.startswith((TRAINED, HUGGING_FACE, FUNCTION))
        require(known, OPTION, model, "must begin with txl:, hf: or py:")
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

    Args:
        options: options of the command.

    Raises:
        OptionError: a model is not usable.
    """
    named, device = references(options), chosen_device(options.accelerator)
    members = []
    for reference, name in zip(named, options.names or model_names(named), strict=True):
        if reference.startswith(TRAINED):
            option = OPTION if reference in options.models else "checkpoints"
            member = load_run(reference.removeprefix(TRAINED), name, options.clamp_len, option)
        elif reference.startswith(HUGGING_FACE):
            member = load_huggingface(reference, name, options.begin_of_text, options.tokenizer)
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
    paths = [Path(one.removeprefix(TRAINED)).resolve().with_suffix("") for one in named if one.startswith(TRAINED)]
    parts = [[part for part in path.parts[1:] if part != "checkpoints"] for path in paths]
    tries = [(start, stop) for start in range(-2, -max(map(len, parts), default=1) - 1, -1) for stop in (-1, None)]
    of_runs = (["/".join(of_path[slice(*ends)]) for of_path in parts] for ends in tries)
    short = iter(next((names for names in of_runs if all(names) and len({*names}) == len(names)), map(str, paths)))
    names = [next(short) if one.startswith(TRAINED) else one.rstrip("/").split(":")[-1].split("/")[-1] for one in named]
    return names if len({*names}) == len(names) else list(named)


@dataclass(frozen=True)
class GroupText:
    """Text of a group, and the positions t, [P], at which all its models are scored.

    Args:
        corpus: entry `corpus` of `recl.json`: `name`, `sha256` (of the corpus or of the text), and `level`: byte, char,
            word or token; losses are per unit of it.
        of_member: tokens of the text, by name of the model.
        spell: returns the text of each token (byte) from one position to before another.
        pieces: bounds 0 … n of the pieces of text that models are compared on, in bytes: those at which no tokenizer
            has a token that goes on. None if all have the same tokens.
        contexts: the grid.
        t: positions.
        blocks: block of each position.
    """

    corpus: dict[str, str]
    of_member: dict[str, TokenizedText]
    spell: Callable[[int, int], list[str]]
    pieces: Integers | None = None
    contexts: Sequence[int] = ()
    t: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    blocks: Integers = field(default_factory=lambda: np.zeros(0, np.int64))

    def at(self, contexts: Sequence[int], n_positions: int, seed: int | None) -> GroupText:
        """Return the text with positions (`position_blocks`): of bytes with `pieces`, of tokens without."""
        first = next(iter(self.of_member.values()))
        length = len(first.tokens) if self.pieces is None else first.n_bytes
        t_P, block_P = position_blocks(length, n_positions, contexts, seed)
        return replace(self, contexts=contexts, t=t_P, blocks=block_P)

    def where(self, chosen_P: np.ndarray) -> GroupText:
        """Return some of the positions."""
        return replace(self, t=self.t[chosen_P], blocks=self.blocks[chosen_P])

    def in_tokens(self, name: str) -> Sequence[int]:
        """Return the contexts in tokens of a model: of contexts in bytes, the most tokens at any position."""
        if self.pieces is None:
            return self.contexts
        starts = self.of_member[name].known_starts
        ends_P = np.searchsorted(starts, self.t)
        return [max(1, int((ends_P - np.searchsorted(starts, self.t - c)).max())) for c in self.contexts]


def group_text(members: Sequence[Member], options: ReclOptions, split: str) -> GroupText:
    """Load a split of the text of all members, and its tokens.

    Checkpoints bring their corpus. Without any, or with `data_path`, it is that file.

    Raises:
        UserError: the text cannot be loaded, the members have different corpora, or they have different tokenizers or
            tokens and contexts are not counted in bytes.
    """
    by_bytes = options.context_unit == "byte"
    if not by_bytes and all(member.trained for member in members):
        return _encoded_corpus(members, options, split)
    for member in members:
        config = None if member.trained is None else member.trained.config
        resets, ids = config and config.memory.reset == "document", config and config.data.level == "ids"
        allowed = f"was trained with {'memory.reset=document' if resets else 'data.level=ids'}: "
        member.require(not (resets or ids), f"{allowed}it can be compared by tokens alone, and with checkpoints alone")
    name, content = _content(members, options.data_path, split)
    corpus = {"name": name, "sha256": hashlib.sha256(content).hexdigest()}
    of_member = {member.name: member.tokenize(content) for member in members}
    texts = list(of_member.values())
    for member, text in zip(members, texts, strict=True):
        if by_bytes:
            allowed = "cannot be compared in bytes: its tokens do not give back every byte of the text"
            member.require(text.starts is not None, allowed)
        else:
            known = text.starts is not None and texts[0].starts is not None
            name_of = "known_starts" if known else "tokens"  # token numbers may differ where bytes are known
            same = np.array_equal(getattr(text, name_of), getattr(texts[0], name_of))
            allowed = f"has another tokenizer than {members[0].checkpoint}: compare them with context_unit=byte"
            member.require(same, allowed)
    if by_bytes:
        pieces = np.append(reduce(np.intersect1d, [text.known_starts for text in texts]), len(content))
        return GroupText({**corpus, "level": "byte"}, of_member, _speller(content, np.arange(len(content))), pieces)
    single_bytes = all(len(text.tokens) == text.n_bytes for text in texts)
    levels = [member.trained.vocabulary.level for member in members if member.trained]
    first, level = texts[0], [*levels, "byte" if single_bytes else "token"][0]
    spell = _speller_of(members[0], first) if first.starts is None else _speller(content, first.starts)
    return GroupText({**corpus, "level": level}, of_member, spell)


def _speller_of(member: Member, text: TokenizedText) -> Callable[[int, int], list[str]]:
    return lambda begin, stop: member.spell(np.asarray(text.tokens[begin:stop]))


def _speller(content: bytes, starts: Integers) -> Callable[[int, int], list[str]]:
    """Return a function of two positions: the texts of tokens, by their first bytes; a last token has the character."""
    bounds = np.append(starts, len(content))

    def spell(begin: int, stop: int) -> list[str]:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        return [decoder.decode(content[a:b]) for a, b in pairwise(bounds[begin : stop + 1].tolist())]

    return spell


def _encoded_corpus(members: Sequence[Member], options: ReclOptions, split: str) -> GroupText:
    """Load the corpus of all members, which are of runs, or the text `data_path`, as each member reads it.

    For a member with `memory.reset=document` the first token of every document is marked. The others get the places
    where documents begin: those of a marked text, or those that the corpus has. With `documents=ignore` neither is so.
    """
    respects, named = options.documents == "respect", members[0].checkpoint
    runs = [(member, member.trained) for member in members if member.trained is not None]
    path, whole = options.data_path, split == WHOLE
    corpora = [checkpoint_corpus(run, one.checkpoint, path, one.option, whole) for one, run in runs]
    first, of_member = corpora[0], {}
    documents = np.asarray(max((corpus.documents[split] for corpus in corpora), key=len))
    for (member, run), corpus in zip(runs, corpora, strict=True):
        level, level_of_first = corpus.vocabulary.level, first.vocabulary.level
        allowed = f"reads {level} tokens, {named} {level_of_first} tokens: use context_unit=byte"
        member.require(level == level_of_first, allowed)
        allowed = f"was trained on another corpus ({corpus.name}) than {named} ({first.name})"
        member.require(corpus.checksum == first.checksum, allowed)
        plain = without_marks(corpus.splits[split])
        same = corpus.vocabulary == first.vocabulary and np.array_equal(plain, without_marks(first.splits[split]))
        allowed = f"reads other tokens than {named}: their vocabularies, the starts of documents (data.document_start) "
        member.require(same, f"{allowed}or the marks of sentences (data.sentence_marks) differ")
        marked = run.config.memory.reset == "document"
        own = plain if marked and not respects else corpus.splits[split]
        hides = respects and not marked and len(documents) > 1
        of_member[member.name] = TokenizedText(own, None, len(own), documents if hides else None)
    return GroupText(first.facts(), of_member, _speller_of(members[0], of_member[members[0].name]))


def _content(members: Sequence[Member], path: Any, split: str) -> tuple[str, bytes]:
    """Return the name and the bytes of the text; of UTF-8 text without a character that is cut at either end."""
    runs = [(member, member.trained) for member in members if member.trained]
    configs = [run.config.data for _, run in runs]
    require(bool(configs) or path is not None, "data_path", path, "must be a text file: no checkpoint brings a corpus")
    if path is not None:
        configs = [file_data(configs[0] if configs else DataConfig(), path, "byte")]
    try:
        texts = [split_bytes(config, split) for config in configs]
    except OptionError as error:
        if path is None:
            raise UserError(f"{error}; if this corpus has moved, give data_path=") from error
        raise OptionError("data_path", path, error.allowed) from error
    name, _, content = texts[0]
    if path is None:
        for (member, run), (other_name, checksum, other) in zip(runs, texts, strict=True):
            report_if_changed(run, f"{member.option}={member.checkpoint}", other_name, checksum)
            allowed = f"was trained on another corpus ({other_name}) than {runs[0][0].checkpoint} ({name})"
            member.require(other == content, allowed)
    try:
        content = whole_characters(content).encode()
    except UserError as error:
        if any(member.checkpoint.startswith(HUGGING_FACE) for member in members):
            raise OptionError("data_path" if path else OPTION, path or name, str(error)) from error
    return name, content


def whole_characters(content: bytes) -> str:
    """Return UTF-8 text without a character that is cut at either end.

    Raises:
        UserError: the bytes are not UTF-8.
    """
    first = next((i for i, byte in enumerate(content[:4]) if byte & 0xC0 != 0x80), 0)
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(content[first:])
    except UnicodeDecodeError as error:
        raise UserError(f"is not UTF-8 text (byte {first + error.start})") from error
