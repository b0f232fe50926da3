"""Text on which a group is scored: one tokenizer for all models, or bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_lightning.config.schemas import DataConfig
from txl_lightning.data.corpus import Corpus, split_bytes
from txl_lightning.data.documents import without_marks
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.evaluation.language_models.outside import OPTION
from txl_lightning.evaluation.language_models.tokenized_text import TokenizedText, common_pieces, whole_characters
from txl_lightning.evaluation.recl.group import HUGGING_FACE, Member
from txl_lightning.evaluation.recl.options import ReclOptions
from txl_lightning.runs.corpora import checkpoint_corpus, report_if_changed

CONTEXT_UNITS = ("token", "byte")
TOKENS_AT_ONCE = 1 << 20


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


def _pieces(members: Sequence[Member], of_member: dict[str, TokenizedText]) -> NDArray[np.int64]:
    for member in members:
        allowed = f"the tokens of {member.path} do not give back every byte of the text"
        require(of_member[member.name].starts is not None, "context_unit", "byte", allowed)
    return common_pieces(list(of_member.values()))
