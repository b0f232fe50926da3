"""Text that all models in a group read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from txl_lightning.config.schemas import DataConfig, file_data
from txl_lightning.data.corpus import WHOLE, split_bytes
from txl_lightning.data.vocabulary import without_marks
from txl_lightning.errors import OptionError, require
from txl_lightning.evaluation.trained import checkpoint_corpus
from txl_lightning.recl.effective_context import Entries, Integers
from txl_lightning.recl.models import CHECKPOINTS, Member, tokens_of_run
from txl_lightning.recl.options import ReclOptions

BYTES = "".join(map(chr, range(0xDC80, 0xDD00)))  # bytes in no character, as Python decodes them


def load_text(
    members: Sequence[Member],
    options: ReclOptions,
    split: str,
) -> tuple[list[Member], Entries, Integers]:
    """Load a split of the text for all members.

    Checkpoints, the first members, bring their corpus. Without any, or with `data_path`, it is that
    file. For a run with `memory.reset=document` the first token of every document is marked. With
    `documents=ignore` no token is marked and no document begins.

    Returns:
        The members with their text; the entry `corpus` of `recl.json`, with the level that decides
        the unit of losses; the first token of each document, 0 alone if they are unknown.

    Raises:
        UserError: the text cannot be loaded, or the members have different tokens.
    """
    is_whole = split == WHOLE
    corpora = []
    for member in members:
        if member.trained is not None:
            run = (member.trained, member.reference, options.data_path, CHECKPOINTS, is_whole)
            corpora.append(checkpoint_corpus(*run))
    if corpora:
        facts = corpora[0].facts()
        content = b""
        if len(corpora) < len(members):
            plain_tokens = without_marks(corpora[0].splits[split])
            content = corpora[0].vocabulary.decode_bytes(plain_tokens)
    else:
        facts, content = _text_file(options.data_path, split)
    texts = []
    documents = np.zeros(1, dtype=np.int64)
    for corpus in corpora:
        tokens = corpus.splits[split]
        if options.documents == "ignore":
            tokens = without_marks(tokens)
        else:
            documents = max(
                documents,
                np.asarray(corpus.documents[split]),
                key=len,
            )
        texts.append(tokens_of_run(corpus.vocabulary, tokens))
    for member in members[len(corpora) :]:
        texts.append(member.tokenize(content))
    read = []
    for member, text in zip(members, texts, strict=True):
        allowed = (
            f"reads other tokens than {members[0].reference}: another text, level, vocabulary or "
            "tokenizer; RECL compares models that read the same tokens: measure it alone"
        )
        member.require(text.has_tokens_of(texts[0]), allowed)
        read.append(replace(member, text=text))
    facts.setdefault("level", texts[0].level)
    return read, facts, documents


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
