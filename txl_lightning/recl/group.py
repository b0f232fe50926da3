"""Models that `txl recl` compares as a group, and the text that they all read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import nn

from txl_lightning.config.schemas import DataConfig, file_data
from txl_lightning.data.corpus import WHOLE, split_bytes
from txl_lightning.data.vocabulary import without_marks
from txl_lightning.errors import require
from txl_lightning.evaluation.commands import chosen_device
from txl_lightning.evaluation.trained import checkpoint_corpus, naming
from txl_lightning.recl.effective_context import Entries, Integers
from txl_lightning.recl.huggingface import load_huggingface
from txl_lightning.recl.models import (
    CHECKPOINTS,
    FUNCTION,
    HUGGING_FACE,
    MODELS,
    Member,
    TokenizedText,
    foreign_errors,
    load_function,
    load_run,
    tokens_of_run,
)
from txl_lightning.recl.options import ReclOptions

BEST = "/checkpoints/best.ckpt"
OTHER_TOKENS = (
    "reads other tokens than {}: another text, level, vocabulary or tokenizer; RECL compares models that read the "
    "same tokens: measure it alone"
)
BYTES = "".join(map(chr, range(0xDC80, 0xDD00)))  # bytes in no character, as Python decodes them


def model_names(options: ReclOptions) -> list[str]:
    """Return the models' names: by default their references, a run's directory for its best checkpoint.

    Raises:
        OptionError: there is no model, one is named twice, or names do not differ.
    """
    references = options.checkpoints + options.models
    require(len(references) > 0, CHECKPOINTS, "[]", "must name at least one checkpoint")
    differ = len(set(references)) == len(references)
    require(differ, CHECKPOINTS, references, "must name each model once")
    for model in options.models:
        is_known = model.startswith((HUGGING_FACE, FUNCTION))
        require(is_known, MODELS, model, "must begin with hf: or py:")
    names = [reference.removesuffix(BEST) for reference in references]
    if options.names is not None:
        names = options.names
    are_names = len(references) == len(names) == len(set(names))
    allowed = f"must be {len(references)} different names, one per model"
    require(are_names, "names", names, allowed)
    return names


def load_group(options: ReclOptions, longest_context: int) -> list[Member]:
    """Load all models on the chosen device, checkpoints first.

    Raises:
        OptionError: a model is not usable.
    """
    members = [load_run(path) for path in options.checkpoints]
    for reference in options.models:
        with foreign_errors(reference, "cannot be loaded"):
            if reference.startswith(HUGGING_FACE):
                member = load_huggingface(reference, longest_context, options.begin_of_text)
            else:
                member = load_function(reference)
        members.append(member)
    device = chosen_device(options.accelerator)
    for member in members:
        if isinstance(member.reader.model, nn.Module):
            member.reader.model.to(device)
    return members


def load_text(
    members: Sequence[Member],
    options: ReclOptions,
    split: str,
) -> tuple[list[TokenizedText], Entries, Integers]:
    """Load a split of the text for all members.

    Checkpoints, the first members, bring their corpus. Without any, or with `data_path`, it is that
    file. For a run with `memory.reset=document` the first token of every document is marked. With
    `documents=ignore` no token is marked and no document begins.

    Returns:
        Each member's tokens; the entry `corpus` of `recl.json`, with the level that decides
        the unit of losses; the first token of each document, 0 alone if they are unknown.

    Raises:
        UserError: the text cannot be loaded, or the members have different tokens.
    """
    texts = []
    documents = np.zeros(1, dtype=np.int64)
    facts: Entries = {}
    content = b""
    for member in members:
        if member.trained is not None:
            run = (member.trained, member.reference, options.data_path, CHECKPOINTS, split == WHOLE)
            corpus = checkpoint_corpus(*run)
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
            facts = facts or corpus.facts()
            continue
        if not content and texts:
            content = corpus.vocabulary.decode_bytes(without_marks(tokens))
        elif not content:
            facts, content = _text_file(options.data_path, split)
        with foreign_errors(member.reference, "cannot read the text"):
            texts.append(member.tokenize(content))
    for member, text in zip(members, texts, strict=True):
        member.require(text.has_tokens_of(texts[0]), OTHER_TOKENS.format(members[0].reference))
    facts.setdefault("level", texts[0].level)
    return texts, facts, documents


def _text_file(path: Any, split: str) -> tuple[Entries, bytes]:
    """Return name and checksum of a text, and its bytes without parts of a character at either end."""
    allowed = "must be a text file: no checkpoint brings a corpus"
    require(path is not None, "data_path", path, allowed)
    with naming("data_path", path):
        data = file_data(DataConfig(), path, "byte")
        name, checksum, content = split_bytes(data, split)
    text = content.decode("utf-8", "surrogateescape").strip(BYTES)
    facts = {"name": name, "sha256": checksum}
    return facts, text.encode("utf-8", "surrogateescape")
