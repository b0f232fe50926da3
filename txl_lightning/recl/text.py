"""Text that all models of a group read."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from txl_lightning.config.schemas import DataConfig, file_data
from txl_lightning.data.corpus import WHOLE, Corpus, split_bytes
from txl_lightning.data.vocabulary import without_marks
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.evaluation.trained import TrainedModel, checkpoint_corpus, report_if_changed
from txl_lightning.recl.models import (
    HUGGING_FACE,
    OPTION,
    Member,
    TokenizedText,
    vocabulary_speller,
)
from txl_lightning.recl.options import ReclOptions

PARTS = "".join(
    map(chr, range(0xDC80, 0xDD00))
)  # bytes that are no character, as Python reads them


@dataclass(frozen=True)
class GroupText:
    """Text of a group.

    Args:
        corpus: entry `corpus` of `recl.json`: `name`, `sha256` (of the corpus or of the text), and
            `level`: byte, char, word or token; losses are per unit of it.
        texts: tokens of the text, by name of the model.
    """

    corpus: dict[str, Any]
    texts: dict[str, TokenizedText]

    @property
    def first(self) -> TokenizedText:
        """The text as the first model reads it."""
        return next(iter(self.texts.values()))


def group_text(members: Sequence[Member], options: ReclOptions, split: str) -> GroupText:
    """Load a split of the text of all members, and its tokens.

    Checkpoints bring their corpus. Without any, or with `data_path`, it is that file.

    Raises:
        UserError: the text cannot be loaded, or the members have different corpora or tokens.
    """
    runs = [(member, member.trained) for member in members if member.trained is not None]
    if len(runs) == len(members):
        return _text_of_runs(runs, options, split)
    for member, trained in runs:
        _require_plain_text(member, trained)
    name, content = _content(members, runs, options.data_path, split)
    texts = {member.name: member.tokenize(content) for member in members}
    first = texts[members[0].name]
    for member in members:
        allowed = (
            f"has another tokenizer than {members[0].reference}: RECL compares models that read the same tokens; "
            "measure it alone"
        )
        member.require(texts[member.name].has_tokens_of(first), allowed)
    level = first.level
    if runs:
        level = texts[runs[0][0].name].level
    checksum = hashlib.sha256(content).hexdigest()
    return GroupText({"name": name, "sha256": checksum, "level": level}, texts)


def _require_plain_text(member: Member, trained: TrainedModel) -> None:
    """Refuse runs that read more than a text in a group with models from elsewhere."""
    allowed = "it can be compared with checkpoints alone"
    resets = trained.config.memory.reset == "document"
    member.require(not resets, f"was trained with memory.reset=document: {allowed}")
    reads_ids = trained.config.data.level == "ids"
    member.require(not reads_ids, f"was trained with data.level=ids: {allowed}")


def _text_of_runs(
    runs: Sequence[tuple[Member, TrainedModel]], options: ReclOptions, split: str
) -> GroupText:
    """Load the corpus of all runs, or the text `data_path`, as each of them reads it.

    For a run with `memory.reset=document` the first token of every document is marked. The others
    get the places where documents begin: those of a marked text, or those that the corpus has. With
    `documents=ignore` neither is so.
    """
    respects = options.documents == "respect"
    corpora = []
    for member, trained in runs:
        whole = split == WHOLE
        corpora.append(
            checkpoint_corpus(trained, member.reference, options.data_path, member.option, whole)
        )
    documents = np.asarray(max((corpus.documents[split] for corpus in corpora), key=len))
    texts = {}
    for (member, trained), corpus in zip(runs, corpora, strict=True):
        _require_same_tokens(member, corpus, runs[0][0], corpora[0], split)
        tokens = corpus.splits[split]
        begins = None
        if trained.config.memory.reset == "document":
            if not respects:
                tokens = without_marks(tokens)
        elif respects and len(documents) > 1:
            begins = documents
        spell = vocabulary_speller(corpus.vocabulary, tokens)
        texts[member.name] = TokenizedText(tokens, corpus.vocabulary.level, spell, documents=begins)
    return GroupText(corpora[0].facts(), texts)


def _require_same_tokens(
    member: Member, corpus: Corpus, first: Member, first_corpus: Corpus, split: str
) -> None:
    """Require that two runs read the same tokens of the same corpus."""
    allowed = (
        f"was trained on another corpus or level ({corpus.name}, {corpus.vocabulary.level}) than "
        f"{first.reference} ({first_corpus.name}, {first_corpus.vocabulary.level})"
    )
    member.require(corpus.checksum == first_corpus.checksum, allowed)
    tokens = without_marks(corpus.splits[split])
    first_tokens = without_marks(first_corpus.splits[split])
    has_same_vocabulary = corpus.vocabulary == first_corpus.vocabulary
    allowed = (
        f"reads other tokens than {first.reference}: the vocabulary, data.document_start "
        "or data.sentence_marks differ"
    )
    member.require(has_same_vocabulary and np.array_equal(tokens, first_tokens), allowed)


def _content(
    members: Sequence[Member],
    runs: Sequence[tuple[Member, TrainedModel]],
    path: Any,
    split: str,
) -> tuple[str, bytes]:
    """Return the name and the bytes of the text; of UTF-8 text without a character that is cut at either end."""
    if path is None:
        name, content = _content_of_runs(runs, split)
    else:
        name, content = _content_of_file(runs, path, split)
    try:
        content = whole_characters(content).encode()
    except UserError as error:
        if any(member.reference.startswith(HUGGING_FACE) for member in members):
            raise OptionError("data_path" if path else OPTION, path or name, str(error)) from error
    return name, content


def _content_of_file(
    runs: Sequence[tuple[Member, TrainedModel]], path: Any, split: str
) -> tuple[str, bytes]:
    config = runs[0][1].config.data if runs else DataConfig()
    try:
        name, _, content = split_bytes(file_data(config, path, "byte"), split)
    except OptionError as error:
        raise OptionError("data_path", path, error.allowed) from error
    return name, content


def _content_of_runs(runs: Sequence[tuple[Member, TrainedModel]], split: str) -> tuple[str, bytes]:
    """Return the name and the bytes of the corpus of all runs."""
    require(len(runs) > 0, "data_path", None, "must be a text file: no checkpoint brings a corpus")
    names: dict[bytes, str] = {}
    for member, trained in runs:
        try:
            name, checksum, content = split_bytes(trained.config.data, split)
        except OptionError as error:
            raise UserError(f"{error}; if this corpus has moved, give data_path=") from error
        report_if_changed(trained, f"{member.option}={member.reference}", name, checksum)
        names.setdefault(content, name)
        allowed = f"was trained on another corpus ({name}) than {runs[0][0].reference}"
        member.require(len(names) == 1, allowed)
    return name, content


def whole_characters(content: bytes) -> str:
    """Return UTF-8 text without a character that is cut at either end.

    Raises:
        UserError: the bytes are not UTF-8.
    """
    text = content.decode("utf-8", errors="surrogateescape").strip(PARTS)
    foreign = set(text) & set(PARTS)
    if foreign:
        place = min(text.index(part) for part in foreign)
        raise UserError(f"is not UTF-8 text (character {place})")
    return text
