"""Prompts to continue: a typed text, or consecutive tokens of a corpus (appendix E)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.data.documents import close_sentences, without_marks
from txl_lightning.data.vocabulary import SENTENCE, Vocabulary
from txl_lightning.errors import OptionError, require
from txl_lightning.evaluation.generate.options import GenerateOptions
from txl_lightning.runs.trained import TrainedModel, checkpoint_corpus

MOST_SHOWN = 40


@dataclass(frozen=True)
class Prompt:
    """Tokens to continue.

    Args:
        tokens: tokens, at least one; marked where a document begins, for a run with `memory.reset=document`.
        title: description, for printing.
        source: origin of the tokens, as `generation.json` states it.
        continuation: tokens that follow in the corpus; None for a typed text.
    """

    tokens: list[int]
    title: str
    source: dict[str, Any]
    continuation: list[int] | None = None

    @property
    def numbers(self) -> list[int]:
        """Token numbers without marks."""
        numbers: list[int] = without_marks(np.array(self.tokens)).tolist()
        return numbers


def check_prompt(options: GenerateOptions) -> None:
    """Check the options of the prompt that need no checkpoint.

    Raises:
        OptionError: naming the option.
    """
    given = [name for name in ("prompt", "prompts", "prompt_file") if getattr(options, name) is not None]
    if not given:
        require(options.context is not None, "prompt", None, "must be given, or context=N to continue N test tokens")
        require((options.context or 0) >= 1, "context", options.context, "must be an integer >= 1")
    else:
        allowed = f"must not be given together with {given[0]}"
        require(len(given) == 1, given[-1], getattr(options, given[-1]), allowed)
        require(options.context is None, "context", options.context, allowed)
        require(options.prompt != "", "prompt", "''", "must have at least one token")
        texts = options.prompts
        require(texts is None or (bool(texts) and all(texts)), "prompts", texts, "must have at least one token each")
    at_a_position = options.position is None or (options.context is not None and options.position >= 0)
    require(at_a_position, "position", options.position, "must be an integer >= 0, with context=N")


def read_prompts(options: GenerateOptions, trained: TrainedModel) -> list[Prompt]:
    """Return the tokens to continue, of one prompt or several.

    Raises:
        UserError: `prompt_file` cannot be read or has no prompt, a prompt has a symbol that is not in the vocabulary,
            the corpus is not usable, or the position is not in it.
    """
    if options.prompt is not None:
        return [typed_prompt(options.prompt, trained.vocabulary, closed=trained.closed_sentences)]
    if options.context is not None:
        return [_context_prompt(options, trained)]
    texts, option = options.prompts, "prompts"
    if texts is None:
        texts, option = _lines(str(options.prompt_file)), "prompt_file"
    prompts = [typed_prompt(text, trained.vocabulary, option, trained.closed_sentences) for text in texts]
    return [replace(prompt, title=f"{prompt.title}, {number}") for number, prompt in enumerate(prompts, 1)]


def _lines(path: str) -> list[str]:
    try:
        lines = [line for line in Path(path).expanduser().read_text(encoding="utf-8").split("\n") if line]
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise OptionError("prompt_file", path, f"cannot be read ({reason})") from error
    require(bool(lines), "prompt_file", path, "must have a prompt on at least one line")
    return lines


def typed_prompt(text: str, vocabulary: Vocabulary, option: str = "prompt", closed: bool = False) -> Prompt:
    """Encode a text; words that are not in the vocabulary become `<unk>`.

    Args:
        text: the prompt.
        vocabulary: vocabulary of the checkpoint.
        option: option that gave it, for errors.
        closed: put `<S>` at the ends of sentences too. The last one is continued, unless a line break ends it.

    Raises:
        OptionError: a byte or character is not in the vocabulary, or a word is not and there is no `<unk>`.
    """
    unknown = _unknown_symbols(text, vocabulary)
    if unknown and (vocabulary.level != "word" or vocabulary.unknown < 0):
        symbols = ", ".join(map(repr, unknown[:MOST_SHOWN])) + (", …" if len(unknown) > MOST_SHOWN else "")
        allowed = f"has {symbols}, not among the {len(vocabulary)} symbols of the checkpoint's vocabulary"
        raise OptionError(option, _short(text), allowed)
    tokens = vocabulary.encode(text.encode())
    if closed:
        tokens, _ = close_sentences(tokens, vocabulary.numbers[SENTENCE])
    ended = closed or (vocabulary.level == "word" and not vocabulary.starts_sentences)
    if ended and not text.endswith("\n"):
        tokens = tokens[:-1]  # drop the end of the line, which the sample continues
    require(len(tokens) >= 1, option, _short(text), "must have at least one token of the checkpoint's vocabulary")
    title = "prompt"
    if unknown:
        title += f" ({', '.join(map(repr, unknown[:MOST_SHOWN]))} read as {vocabulary.symbols[vocabulary.unknown]})"
    return Prompt(tokens.tolist(), title, {"prompt": text, "unknown": unknown})


def _unknown_symbols(text: str, vocabulary: Vocabulary) -> list[str]:
    """Return characters or words of a text that the vocabulary lacks, ordered by first occurrence."""
    if not vocabulary.symbols or vocabulary.level == "bpe":
        return []
    numbers = vocabulary.numbers
    if vocabulary.level == "word":
        return [word for word in dict.fromkeys(text.split()) if word not in numbers]
    if vocabulary.level == "char":
        return [character for character in dict.fromkeys(text) if character not in numbers]
    known = {*numbers, "\n"}  # a line break that is not a symbol is dropped, as in the corpus
    return [c for c in dict.fromkeys(text) if not known.issuperset(c.encode().decode("latin-1"))]


def _context_prompt(options: GenerateOptions, trained: TrainedModel) -> Prompt:
    """Return `context` consecutive tokens of a split, and the tokens that follow."""
    corpus = checkpoint_corpus(trained, options.checkpoint, options.data_path)
    tokens, n = corpus.splits[options.split], options.context or 0
    allowed = f"must be in 1 … {len(tokens)}, the tokens of {options.split} in {corpus.name}"
    require(n <= len(tokens), "context", n, allowed)
    last = len(tokens) - n
    position = options.position
    if position is None:
        # Leave room for the whole continuation if the split is long enough.
        position = int(np.random.default_rng(options.seed).integers(max(last - options.n_tokens, 0) + 1))
    require(position <= last, "position", position, f"must be in 0 … {last} with context={n}")
    return Prompt(
        tokens[position : position + n].tolist(),
        f"context: {n} tokens of {corpus.name} ({options.split}) from token {position:,} on",
        {"corpus": corpus.name, "sha256": corpus.checksum, "split": options.split, "position": position, "context": n},
        without_marks(tokens[position + n : position + n + options.n_tokens]).tolist(),
    )


def _short(text: str) -> str:
    shown = repr(text)
    return f"{shown[:MOST_SHOWN]}…" if len(shown) > MOST_SHOWN else shown
