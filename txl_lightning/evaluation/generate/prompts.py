"""What a sample continues: a text as it was typed, or consecutive tokens of a corpus (paper, appendix E)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from txl_lightning.data.corpora.corpus import SPLITS, load_corpus
from txl_lightning.data.vocabulary.symbols import Vocabulary
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.evaluation.generate.options import GenerateOptions
from txl_lightning.runs.trained import TrainedModel

MOST_SHOWN = 40


@dataclass(frozen=True)
class Prompt:
    """Tokens to continue.

    Args:
        tokens: at least one.
        title: what they are, for people.
        source: the same as plain data.
        continuation: the tokens that follow them in the corpus; None for a typed text.
    """

    tokens: list[int]
    title: str
    source: dict[str, Any]
    continuation: list[int] | None = None


def check_prompt(options: GenerateOptions) -> None:
    """Refuse what needs no checkpoint to be refused.

    Raises:
        OptionError: naming the option.
    """
    if options.prompt is None:
        require(options.context is not None, "prompt", None, "must be given, or context=N to continue N test tokens")
        require((options.context or 0) >= 1, "context", options.context, "must be an integer >= 1")
    else:
        require(options.context is None, "context", options.context, "must not be given together with prompt")
        require(options.prompt != "", "prompt", "''", "must have at least one token")
    at_a_position = options.position is None or (options.context is not None and options.position >= 0)
    require(at_a_position, "position", options.position, "must be an integer >= 0, with context=N")
    require(options.split in SPLITS, "split", options.split, f"must be one of {', '.join(SPLITS)}")


def read_prompt(options: GenerateOptions, trained: TrainedModel) -> Prompt:
    """The tokens to continue.

    Raises:
        UserError: a symbol of the prompt is not in the vocabulary, the corpus cannot be read or has another
            vocabulary, or the position is not in it.
    """
    if options.prompt is not None:
        return typed_prompt(options.prompt, trained.vocabulary)
    return context_prompt(options, trained)


def typed_prompt(text: str, vocabulary: Vocabulary) -> Prompt:
    """A text in the vocabulary's symbols; words that are not among them become `<unk>`.

    Raises:
        OptionError: a byte or character is not in the vocabulary, or a word where it has no `<unk>`.
    """
    unknown = unknown_symbols(text, vocabulary)
    if unknown and (vocabulary.level != "word" or vocabulary.unknown < 0):
        symbols = ", ".join(map(repr, unknown[:MOST_SHOWN])) + (", …" if len(unknown) > MOST_SHOWN else "")
        allowed = f"{symbols} not among the {len(vocabulary)} symbols of the checkpoint's vocabulary"
        raise OptionError("prompt", short(text), allowed)
    tokens = vocabulary.encode(text.encode())
    if vocabulary.level == "word" and not vocabulary.starts_sentences and not text.endswith("\n"):
        tokens = tokens[:-1]  # the line is to be continued, not ended
    require(len(tokens) >= 1, "prompt", short(text), "must have at least one token of the checkpoint's vocabulary")
    title = "prompt"
    if unknown:
        title += f" ({', '.join(map(repr, unknown[:MOST_SHOWN]))} read as {vocabulary.symbols[vocabulary.unknown]})"
    return Prompt(tokens.tolist(), title, {"prompt": text, "unknown": unknown})


def unknown_symbols(text: str, vocabulary: Vocabulary) -> list[str]:
    """Characters, or words, of a text that the vocabulary lacks, in the order of their first appearance."""
    if not vocabulary.symbols:
        return []
    numbers = vocabulary.numbers
    if vocabulary.level == "word":
        return [word for word in dict.fromkeys(text.split()) if word not in numbers]
    if vocabulary.level == "char":
        return [character for character in dict.fromkeys(text) if character not in numbers]
    known = {*numbers, "\n"}  # a line break that is no symbol is left out, as in the corpus
    return [c for c in dict.fromkeys(text) if not known.issuperset(c.encode().decode("latin-1"))]


def context_prompt(options: GenerateOptions, trained: TrainedModel) -> Prompt:
    """`context` consecutive tokens of a split, and those that follow them."""
    data = trained.config.data
    if options.data_path is not None:
        data = replace(data, name="file", path=options.data_path)
    try:
        corpus = load_corpus(data)
    except OptionError as error:
        name = "data_path" if options.data_path is not None and error.option == "data.path" else error.option
        raise OptionError(name, error.value, error.allowed) from error
    if corpus.vocabulary != trained.vocabulary:
        raise UserError(f"the vocabulary of {corpus.name} is not the checkpoint's ({options.checkpoint})")
    tokens, n = corpus.splits[options.split], options.context or 0
    allowed = f"must be in 1 … {len(tokens)}, the tokens of {options.split} in {corpus.name}"
    require(n <= len(tokens), "context", n, allowed)
    last = len(tokens) - n
    position = options.position
    if position is None:
        # With the whole continuation, where the split is long enough for it.
        position = int(np.random.default_rng(options.seed).integers(max(last - options.n_tokens, 0) + 1))
    require(position <= last, "position", position, f"must be in 0 … {last} with context={n}")
    return Prompt(
        tokens[position : position + n].tolist(),
        f"context: {n} tokens of {corpus.name} ({options.split}) from token {position:,} on",
        {"corpus": corpus.name, "sha256": corpus.checksum, "split": options.split, "position": position, "context": n},
        tokens[position + n : position + n + options.n_tokens].tolist(),
    )


def short(text: str) -> str:
    """The beginning of a text on one line."""
    shown: Sequence[str] = repr(text)
    return f"{shown[:MOST_SHOWN]}…" if len(shown) > MOST_SHOWN else str(shown)
