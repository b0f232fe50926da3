"""Text that all models of a group read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from txl_lightning.config.schemas import DataConfig, file_data
from txl_lightning.data.corpus import WHOLE, Corpus, split_bytes
from txl_lightning.data.vocabulary import without_marks
from txl_lightning.errors import OptionError, require
from txl_lightning.evaluation.trained import checkpoint_corpus
from txl_lightning.recl.effective_context import Entries
from txl_lightning.recl.models import CHECKPOINTS, Member, TokenizedText, vocabulary_speller
from txl_lightning.recl.options import ReclOptions

BYTES = "".join(map(chr, range(0xDC80, 0xDD00)))  # of no character, as Python decodes them

Texts = dict[str, TokenizedText]


def group_text(
    members: Sequence[Member],
    options: ReclOptions,
    split: str,
) -> tuple[Entries, Texts]:
    """Load a split of the text of all members.

    Checkpoints bring their corpus. Without any, or with `data_path`, it is that file.

    Returns:
        Entry `corpus` of `recl.json`: `name`, `sha256` and `level`, byte, char, word or token;
        losses are per unit of it. And the tokens, by name of the model.

    Raises:
        UserError: the text cannot be loaded, or the members have different corpora or tokens.
    """
    runs = [member for member in members if member.trained is not None]
    foreign = [member for member in members if member.trained is None]
    if not runs:
        name, checksum, content = _text_file(options.data_path, split)
        texts = {member.name: member.tokenize(content) for member in members}
        level = texts[members[0].name].level
        facts = {
            "name": name,
            "sha256": checksum,
            "level": level,
        }
    else:
        corpora = [_corpus(member, options.data_path, split) for member in runs]
        texts = _text_of_runs(runs, corpora, split, options.documents == "respect")
        facts = corpora[0].facts()
        documents = texts[runs[0].name].documents
        if foreign:
            content = _content(corpora[0], split)
        for member in foreign:
            text = member.tokenize(content)
            texts[member.name] = replace(text, documents=documents)
    first = members[0]
    first_text = texts[first.name]
    for member in foreign:
        allowed = (
            f"has another tokenizer than {first.reference}: "
            "RECL compares models that read the same tokens; measure it alone"
        )
        same_tokens = texts[member.name].has_tokens_of(first_text)
        member.require(same_tokens, allowed)
    return facts, texts


def _corpus(member: Member, data_path: Any, split: str) -> Corpus:
    """Load the corpus of a run, or the text `data_path` as the run reads it."""
    assert member.trained is not None
    is_whole = split == WHOLE
    return checkpoint_corpus(member.trained, member.reference, data_path, CHECKPOINTS, is_whole)


def _text_of_runs(
    runs: Sequence[Member],
    corpora: Sequence[Corpus],
    split: str,
    respects_documents: bool,
) -> Texts:
    """Return the tokens of every run, and where documents begin.

    For a run with `memory.reset=document` the first token of every document is marked. The others
    get the places where documents begin, from a marked text or from the corpus. If
    documents are not respected, neither is so.
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
        level = corpus.vocabulary.level
        spell = vocabulary_speller(corpus.vocabulary, tokens)
        texts[member.name] = TokenizedText(tokens, level, spell, documents)
    return texts


def _content(corpus: Corpus, split: str) -> bytes:
    """Return the text of a corpus as its tokens have it."""
    vocabulary = corpus.vocabulary
    tokens = without_marks(corpus.splits[split])
    if vocabulary.level in ("word", "ids"):
        return vocabulary.decode(tokens).encode()
    return vocabulary.decode_bytes(tokens)


def _text_file(path: Any, split: str) -> tuple[str, str, bytes]:
    """Return the name, the checksum and the bytes of a text, without parts of a character at either end."""
    allowed = "must be a text file: no checkpoint brings a corpus"
    require(path is not None, "data_path", path, allowed)
    try:
        data = file_data(DataConfig(), path, "byte")
        name, checksum, content = split_bytes(data, split)
    except OptionError as error:
        raise OptionError("data_path", path, error.allowed) from error
    text = content.decode("utf-8", errors="surrogateescape").strip(BYTES)
    return name, checksum, text.encode("utf-8", errors="surrogateescape")
