"""Text that all models in a group read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from txl_lightning.config.schemas import DataConfig, file_data
from txl_lightning.data.corpus import WHOLE, Corpus, split_bytes
from txl_lightning.data.vocabulary import without_marks
from txl_lightning.errors import OptionError, require
from txl_lightning.evaluation.trained import checkpoint_corpus
from txl_lightning.recl.effective_context import Entries, Integers
from txl_lightning.recl.models import CHECKPOINTS, Member, TokenizedText, vocabulary_speller
from txl_lightning.recl.options import ReclOptions

BYTES = "".join(map(chr, range(0xDC80, 0xDD00)))  # bytes in no character, as Python decodes them


@dataclass(frozen=True)
class GroupText:
    """A split of the group's text.

    Args:
        corpus: entry `corpus` in `recl.json`: `name`, `sha256` and `level`, byte, char, word or token; losses are per
            unit at this level.
        tokens: the tokens, by model name.
        documents: each document's first token, ascending from 0; 0 alone if they are unknown.
    """

    corpus: Entries
    tokens: dict[str, TokenizedText]
    documents: Integers = field(default_factory=lambda: np.zeros(1, dtype=np.int64))

    def document_begins(self, positions: Integers) -> Integers:
        """Return, for each position, the first token of the document that the preceding token belongs to."""
        last_read = positions - 1
        document_P = np.searchsorted(self.documents, last_read, side="right") - 1
        return self.documents[document_P]


def group_text(members: Sequence[Member], options: ReclOptions, split: str) -> GroupText:
    """Load a split of the text for all members.

    Checkpoints bring their corpus. Without any, or with `data_path`, it is that file.

    Raises:
        UserError: the text cannot be loaded, or the members have different corpora or tokens.
    """
    runs = [member for member in members if member.trained is not None]
    foreign = [member for member in members if member.trained is None]
    content = b""
    if runs:
        corpora = [_corpus(member, options.data_path, split) for member in runs]
        text = _text_of_runs(runs, corpora, split, options.documents == "respect")
        if foreign:
            content = _content(corpora[0], split)
    else:
        name, checksum, content = _text_file(options.data_path, split)
        text = GroupText({"name": name, "sha256": checksum}, {})
    first = members[0]
    for member in foreign:
        text.tokens[member.name] = member.tokenize(content)
        allowed = (
            f"has another tokenizer than {first.reference}: "
            "RECL compares models that read the same tokens; measure it alone"
        )
        same_tokens = text.tokens[member.name].has_tokens_of(text.tokens[first.name])
        member.require(same_tokens, allowed)
    text.corpus.setdefault("level", text.tokens[first.name].level)
    return text


def _corpus(member: Member, data_path: Any, split: str) -> Corpus:
    """Load a run's corpus, or the text `data_path` as the run reads it."""
    assert member.trained is not None
    is_whole = split == WHOLE
    return checkpoint_corpus(member.trained, member.reference, data_path, CHECKPOINTS, is_whole)


def _text_of_runs(
    runs: Sequence[Member],
    corpora: Sequence[Corpus],
    split: str,
    respects_documents: bool,
) -> GroupText:
    """Return every run's tokens, and where documents begin.

    With `memory.reset=document` each document's first token is marked. If documents are not respected, no token is
    marked and no document begins.
    """
    first = corpora[0]
    first_tokens = without_marks(first.splits[split])
    documents_of = [np.asarray(corpus.documents[split]) for corpus in corpora]
    documents = max(documents_of, key=len)
    if not respects_documents:
        documents = documents[:1]
    texts = {}
    for member, corpus in zip(runs, corpora, strict=True):
        tokens = corpus.splits[split]
        plain_tokens = without_marks(tokens)
        is_same_corpus = corpus.checksum == first.checksum and corpus.vocabulary == first.vocabulary
        allowed = (
            f"reads another text than {runs[0].reference}: corpus, level, vocabulary, "
            "data.document_start or data.sentence_marks differ"
        )
        is_same_text = is_same_corpus and np.array_equal(plain_tokens, first_tokens)
        member.require(is_same_text, allowed)
        if not respects_documents:
            tokens = plain_tokens
        spell = vocabulary_speller(corpus.vocabulary, tokens)
        texts[member.name] = TokenizedText(tokens, corpus.vocabulary.level, spell)
    return GroupText(first.facts(), texts, documents)


def _content(corpus: Corpus, split: str) -> bytes:
    """Return a corpus's text as its tokens have it."""
    vocabulary = corpus.vocabulary
    tokens = without_marks(corpus.splits[split])
    if vocabulary.level in ("word", "ids"):
        return vocabulary.decode(tokens).encode()
    return vocabulary.decode_bytes(tokens)


def _text_file(path: Any, split: str) -> tuple[str, str, bytes]:
    """Return a text's name, checksum and bytes, without partial characters at either end."""
    allowed = "must be a text file: no checkpoint brings a corpus"
    require(path is not None, "data_path", path, allowed)
    try:
        data = file_data(DataConfig(), path, "byte")
        name, checksum, content = split_bytes(data, split)
    except OptionError as error:
        raise OptionError("data_path", path, error.allowed) from error
    text = content.decode("utf-8", errors="surrogateescape").strip(BYTES)
    return name, checksum, text.encode("utf-8", errors="surrogateescape")
