"""Models that `txl recl` compares, and their tokens of a text.

A `Member` is a checkpoint of a run (txl:), a causal model of Hugging Face (hf:, see `huggingface`)
or the model that a Python function returns (py:).
"""

from __future__ import annotations

import codecs
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from txl_lightning.config.lengths import tokens_per_step, trained_clamp, training_lengths
from txl_lightning.config.schemas import Config, RecurrentModelConfig
from txl_lightning.data.vocabulary import (
    SENTENCE,
    StreamDecoder,
    Vocabulary,
    close_sentences,
    without_marks,
)
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.evaluation.trained import TrainedModel, load_trained
from txl_lightning.evaluation.windows import WindowReader, window_reader
from txl_lightning.files import file_checksum
from txl_lightning.model.language_model import LanguageModel
from txl_lightning.recl.effective_context import Integers

OPTION = "models"
TRAINED = "txl:"
HUGGING_FACE = "hf:"
FUNCTION = "py:"

Speller = Callable[[int, int], list[str]]
"""Returns the text of each token from one position to before another."""


@dataclass(frozen=True)
class TokenizedText:
    """Tokens of a text, as one model reads them.

    Args:
        tokens: token numbers, [K].
        level: byte, char, word, bpe, ids, or token for the pieces of another tokenizer.
        spell: returns the text of each token.
        starts: first byte of each token, [K], ascending from 0, to compare tokenizers whose numbers
            differ; None if unknown.
        documents: first token of each document, ascending from 0; None where they are unknown, are
            marked in the tokens, or do not matter.
        findings: entries of the model in `recl.json` that depend on the text.
    """

    tokens: np.ndarray
    level: str
    spell: Speller
    starts: Integers | None = None
    documents: Integers | None = None
    findings: dict[str, Any] = field(default_factory=dict)

    def document_begins(self, positions: Integers) -> Integers:
        """Return the first token of the document of the token before each position; 0 without documents."""
        if self.documents is None:
            return np.zeros_like(positions)
        document_P = np.searchsorted(self.documents, positions - 1, side="right") - 1
        return self.documents[document_P]

    def has_tokens_of(self, other: TokenizedText) -> bool:
        """Return whether both texts are cut into the same tokens, by their bytes if these are known."""
        if self.starts is not None and other.starts is not None:
            return np.array_equal(self.starts, other.starts)
        return np.array_equal(self.tokens, other.tokens)


@dataclass(frozen=True)
class Member:
    """One model of a group, in evaluation mode.

    Args:
        name: name in tables and figures.
        reference: path of the checkpoint, or `hf:NAME` or `py:module.function`.
        kind: size, encoding and recurrence, in words.
        reader: reader of windows.
        tokenize: returns the tokens of a text; raises OptionError if the model cannot read it.
        trained: contents of the checkpoint; None for a model from elsewhere.
        option: option that named the model, for errors.
        findings: entries of the model in `recl.json` beyond those of `facts`.
    """

    name: str
    reference: str
    kind: str
    reader: WindowReader
    tokenize: Callable[[bytes], TokenizedText]
    trained: TrainedModel | None = None
    option: str = OPTION
    findings: dict[str, Any] = field(default_factory=dict)

    def require(self, condition: bool, allowed: str) -> None:
        """Raise an OptionError that names the model unless `condition` holds."""
        require(condition, self.option, self.reference, allowed)

    def finding(self, **entries: Any) -> Member:
        """Return the member with further entries for `recl.json`."""
        return replace(self, findings={**self.findings, **entries})

    def facts(self) -> dict[str, Any]:
        """Return the entries of `recl.json` about the model itself and how it is read."""
        return {
            "checkpoint": self.reference,
            "kind": self.kind,
            "scoring": "one pass" if self.reader.one_pass else "direct",
            "limit": self.reader.limit,
            "sha256": None,
            "step": None,
            "tokens_trained": None,
            "trained_len": None,
            "clamp_len": None,
            "one_pass_difference": None,
            "begin_of_text": [],
            "limit_reason": None,
            "code_not_run": None,
            "not_read": [],
            "other_tokenizer": False,
            "changed_text": None,
            **self.findings,
        }


@contextmanager
def foreign_errors(reference: str, fault: str) -> Iterator[None]:
    """Report an error of somebody else's code as a fault of the model, with its first sentence."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # foreign code has no common error
        sentence = " ".join(str(error).split()).split(". ")[0]
        raise OptionError(
            OPTION, reference, f"{fault} ({sentence or type(error).__name__})"
        ) from error


def load_run(path: str, name: str, clamp_len: int | None, option: str) -> Member:
    """Load a checkpoint of a run.

    Args:
        path: path of the checkpoint.
        name: name in tables and figures.
        clamp_len: larger distances share one position; None for the length of the run's own
            evaluation.
        option: option that named the checkpoint, for errors.

    Raises:
        OptionError: the checkpoint cannot be read.
    """
    trained = load_trained(path, option=option)
    config = trained.config
    run_clamp = trained_clamp(config)
    if clamp_len is None or run_clamp is None:
        clamp_len = run_clamp
    lengths = training_lengths(config)

    def tokenize(content: bytes) -> TokenizedText:
        try:
            return with_vocabulary(trained.vocabulary, content, trained.closed_sentences)
        except UserError as error:
            raise OptionError(option, path, str(error)) from error

    member = Member(
        name=name,
        reference=path,
        kind=_kind_of_run(config),
        reader=window_reader(trained.model, lengths.window, clamp_len),
        tokenize=tokenize,
        trained=trained,
        option=option,
    )
    if member.reader.limit is not None:
        member = member.finding(
            limit_reason="absolute positions beyond the trained length have no meaning"
        )
    return member.finding(
        sha256=file_checksum(Path(path)),
        step=trained.step,
        tokens_trained=trained.step * tokens_per_step(config),
        trained_len=lengths.farthest_distance + 1,
        clamp_len=clamp_len,
    )


def _kind_of_run(config: Config) -> str:
    """Return size, encoding, recurrence and variant of a run, in words."""
    if isinstance(config.model, RecurrentModelConfig):
        return config.model.name
    memory = "no recurrence"
    if config.memory.mem_len:
        memory = f"memory {config.memory.mem_len}"
    kind = f"{config.model.name}, {config.encoding.name}, {memory}"
    if config.variant:
        kind += f", variant={config.variant['name']}"
    return kind


def with_vocabulary(vocabulary: Vocabulary, content: bytes, closed: bool = False) -> TokenizedText:
    """Encode a text as a run does. Starts are unknown for words, and where bytes are dropped.

    Args:
        vocabulary: vocabulary of the run.
        content: the text.
        closed: put `<S>` at the ends of sentences too.

    Raises:
        UserError: a symbol is not in the vocabulary.
    """
    tokens = replace(vocabulary, lenient=False).encode(content)
    if closed:
        tokens, _ = close_sentences(tokens, vocabulary.numbers[SENTENCE])
    starts = None
    if vocabulary.byte_lengths is not None:
        sizes = vocabulary.byte_lengths[tokens]
        if sizes.sum() == len(content):
            starts = np.cumsum(sizes) - sizes
    return TokenizedText(tokens, vocabulary.level, vocabulary_speller(vocabulary, tokens), starts)


def vocabulary_speller(vocabulary: Vocabulary, tokens: np.ndarray) -> Speller:
    """Return a speller of the tokens of a run; the last token of a character has the character."""

    def spell(begin: int, stop: int) -> list[str]:
        decoder = StreamDecoder(vocabulary)
        shown = without_marks(np.asarray(tokens[begin:stop]))
        return [decoder.feed([token]) for token in shown]

    return spell


def load_function(reference: str, name: str) -> Member:
    """Call the function of `py:module.function` and return the language model it returns.

    The model has `score`. It may have `encode(text: bytes)`, which returns token numbers and the
    bytes of each token (both [K]; the bytes sum to the text's), `limit`, the tokens that it can
    see, and `one_pass`. Without `encode` its tokens are bytes. A module is also found in the
    working directory.

    Raises:
        OptionError: there is no such function, or it returns no language model.
    """
    module_name, _, function_name = reference.removeprefix(FUNCTION).rpartition(".")
    has_module = module_name != "" and module_name.strip(".") == module_name
    require(has_module, OPTION, reference, "must be py:module.function")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    with foreign_errors(reference, "must be a function without arguments that returns a model"):
        function = getattr(importlib.import_module(module_name), function_name)
        model = function()
    is_model = isinstance(model, LanguageModel) and not isinstance(model, type)
    allowed = f"must return a model with the method score, not {type(model).__name__}"
    require(is_model, OPTION, reference, allowed)
    if isinstance(model, nn.Module):
        model = model.eval().requires_grad_(False)
    limit = getattr(model, "limit", None)
    reader = WindowReader(model, limit=limit, one_pass=getattr(model, "one_pass", True))

    def tokenize(content: bytes) -> TokenizedText:
        return _tokens_of_function(model, content, reference)

    member = Member(name, reference, type(model).__name__, reader, tokenize)
    if limit is not None:
        member = member.finding(trained_len=limit, limit_reason="the model's own limit")
    return member


def _tokens_of_function(model: Any, content: bytes, reference: str) -> TokenizedText:
    """Return the tokens of `model.encode`, or bytes."""
    if not hasattr(model, "encode"):
        starts = np.arange(len(content))
        tokens = np.frombuffer(content, np.uint8)
        return TokenizedText(tokens, "byte", byte_speller(content, starts), starts)
    encoded, lengths = model.encode(content)
    tokens = np.asarray(encoded, dtype=np.int64)
    sizes = np.asarray(lengths, dtype=np.int64)
    covers_text = sizes.sum() == len(content) and sizes.min(initial=0) >= 0
    allowed = "encode must return tokens and their sizes, which sum to the bytes given"
    require(tokens.shape == sizes.shape and covers_text, OPTION, reference, allowed)
    starts = np.cumsum(sizes) - sizes
    level = "byte" if len(tokens) == len(content) else "token"
    return TokenizedText(tokens, level, byte_speller(content, starts), starts)


def byte_speller(content: bytes, starts: Integers) -> Speller:
    """Return a speller of tokens that begin at these bytes; the last token of a character has the character."""
    bounds = np.append(starts, len(content))

    def spell(begin: int, stop: int) -> list[str]:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        texts = []
        for k in range(begin, stop):
            texts.append(decoder.decode(content[bounds[k] : bounds[k + 1]]))
        return texts

    return spell
