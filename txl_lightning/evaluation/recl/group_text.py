"""Text on which a group is scored: one tokenizer for all models, or bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_lightning.config.schemas import DataConfig
from txl_lightning.data.corpora.corpus import Corpus, split_bytes
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.evaluation.language_models.outside import OPTION
from txl_lightning.evaluation.language_models.tokenized_text import TokenizedText, common_pieces, whole_characters
from txl_lightning.evaluation.recl.group import HUGGING_FACE, Member
from txl_lightning.evaluation.recl.options import ReclOptions
from txl_lightning.runs.corpora import checkpoint_corpus

CONTEXT_UNITS = ("token", "byte")


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
    pieces: NDArray[np.int64] | None = None
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
        UserError: the text cannot be loaded, the members have different corpora, or they have different tokenizers and
            contexts are not counted in bytes.
    """
    by_bytes = options.context_unit == "byte"
    if not by_bytes and all(member.trained for member in members):
        corpus = common_corpus(members, options.data_path)
        tokens = corpus.splits[options.split]
        of_all = TokenizedText(tokens, None, len(tokens))
        return GroupText(corpus.name, corpus.checksum, corpus.vocabulary.level, {m.name: of_all for m in members})
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


def common_corpus(members: Sequence[Member], data_path: str | None) -> Corpus:
    """Load the corpus of all members, which are of runs, or the text `data_path`.

    Raises:
        UserError: a corpus cannot be loaded, or the members have different corpora or vocabularies.
    """
    trained = [(member, member.trained) for member in members if member.trained]
    corpora = [checkpoint_corpus(t, member.path, data_path, option="checkpoints") for member, t in trained]
    first = corpora[0]
    for member, corpus in zip(members, corpora, strict=True):
        if corpus.checksum != first.checksum:
            allowed = f"was trained on another corpus ({corpus.name}) than {members[0].path} ({first.name})"
            raise OptionError("checkpoints", member.path, allowed)
        if corpus.vocabulary != first.vocabulary:
            allowed = f"was trained with another vocabulary than {members[0].path}"
            raise OptionError("checkpoints", member.path, allowed)
    return first


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
            texts.append((member, *split_bytes(data, options.split)))
        except OptionError as error:
            option = "data_path" if error.option == "data.path" else error.option
            raise OptionError(option, error.value, error.allowed) from error
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


def _pieces(members: Sequence[Member], of_member: dict[str, TokenizedText]) -> NDArray[np.int64]:
    for member in members:
        allowed = f"the tokens of {member.path} do not give back every byte of the text"
        require(of_member[member.name].starts is not None, "context_unit", "byte", allowed)
    return common_pieces(list(of_member.values()))
