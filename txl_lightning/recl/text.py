"""Text that all models of a group read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from txl_lightning.config.schemas import DataConfig, file_data
from txl_lightning.data.corpus import WHOLE, Corpus, split_bytes
from txl_lightning.data.vocabulary import without_marks
from txl_lightning.errors import OptionError, require
from txl_lightning.evaluation.trained import checkpoint_corpus
from txl_lightning.recl.effective_context import Entries, Integers
from txl_lightning.recl.models import CHECKPOINTS, Member, TokenizedText, tokens_of_run
from txl_lightning.recl.options import ReclOptions

BYTES = "".join(map(chr, range(0xDC80, 0xDD00)))  # of no character, as Python decodes them


@dataclass(frozen=True)
class GroupText:
    """A split of the text of a group.

    Args:
        corpus: entry `corpus` of `recl.json`: `name`, `sha256` and `level`, byte, char, word or token;
            losses are per unit of it.
        tokens: the tokens, by name of the model.
        documents: first token of each document, ascending from 0; 0 alone if they are unknown.
    """

    corpus: Entries
    tokens: dict[str, TokenizedText]
    documents: Integers

    def document_begins(self, positions: Integers) -> Integers:
        """Return the first token of the document of the token before each position."""
        last_read = positions - 1
        document_P = np.searchsorted(self.documents, last_read, side="right") - 1
        return self.documents[document_P]


def group_text(members: Sequence[Member], options: ReclOptions, split: str) -> GroupText:
    """Load a split of the text of all members.

    Checkpoints, the first members, bring their corpus. Without any, or with `data_path`, it is that
    file. For a run with `memory.reset=document` the first token of every document is marked. With
    `documents=ignore` no token is marked and no document begins.

    Raises:
        UserError: the text cannot be loaded, or the members have different tokens.
    """
    corpora: dict[str, Corpus] = {}
    for member in members:
        if member.trained is not None:
            corpora[member.name] = checkpoint_corpus(
                member.trained,
                member.reference,
                options.data_path,
                CHECKPOINTS,
                whole=split == WHOLE,
            )
    first = members[0]
    content = b""
    if not corpora:
        facts, content = _text_file(options.data_path, split)
    else:
        facts = corpora[first.name].facts()
        if len(corpora) < len(members):
            tokens = without_marks(corpora[first.name].splits[split])
            content = corpora[first.name].vocabulary.decode_bytes(tokens)
    texts: dict[str, TokenizedText] = {}
    documents = np.zeros(1, dtype=np.int64)
    for member in members:
        if member.name not in corpora:
            text = member.tokenize(content)
        else:
            corpus = corpora[member.name]
            text = tokens_of_run(corpus.vocabulary, corpus.splits[split])
            if options.documents == "ignore":
                text = replace(text, tokens=without_marks(text.tokens))
            else:
                documents = max(documents, np.asarray(corpus.documents[split]), key=len)
        texts[member.name] = text
        allowed = (
            f"reads other tokens than {first.reference}: another text, level, vocabulary or "
            "tokenizer; RECL compares models that read the same tokens: measure it alone"
        )
        member.require(text.has_tokens_of(texts[first.name]), allowed)
    facts.setdefault("level", texts[first.name].level)
    return GroupText(facts, texts, documents)


def _text_file(path: Any, split: str) -> tuple[Entries, bytes]:
    """Return name and checksum of a text, and its bytes without parts of a character at either end."""
    allowed = "must be a text file: no checkpoint brings a corpus"
    require(path is not None, "data_path", path, allowed)
    try:
        data = file_data(DataConfig(), path, "byte")
        name, checksum, content = split_bytes(data, split)
    except OptionError as error:
        raise OptionError("data_path", path, error.allowed) from error
    text = content.decode("utf-8", "surrogateescape").strip(BYTES)
    facts = {"name": name, "sha256": checksum}
    return facts, text.encode("utf-8", "surrogateescape")
