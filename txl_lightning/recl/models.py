"""Models that `txl recl` compares, and how they tokenize a text.

A `Member` is a run's checkpoint, a causal model from Hugging Face (hf:, see `huggingface`) or the model that a Python
function returns (py:).
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
from txl_lightning.data.vocabulary import StreamDecoder, Vocabulary, without_marks
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.evaluation.trained import TrainedModel, load_trained
from txl_lightning.files import file_checksum
from txl_lightning.model.language_model import LanguageModel
from txl_lightning.recl.effective_context import Entries
from txl_lightning.recl.windows import WindowReader, window_reader

CHECKPOINTS = "checkpoints"
MODELS = "models"
HUGGING_FACE = "hf:"
FUNCTION = "py:"

Speller = Callable[[int, int], list[str]]
"""Returns the text of each token from one position to before another."""


@dataclass(frozen=True)
class TokenizedText:
    """A text's tokens, as one model reads them.

    Args:
        tokens: token numbers, [K].
        level: byte, char, word, bpe, ids, or token for another tokenizer's pieces.
        spell: returns each token's text; a character belongs to its last token.
        findings: the model's `recl.json` entries that depend on the text.
    """

    tokens: np.ndarray
    level: str
    spell: Speller
    findings: Entries = field(default_factory=dict)

    def has_tokens_of(self, other: TokenizedText) -> bool:
        """Return whether both texts have the same token numbers, or the same text pieces."""
        if np.array_equal(self.tokens, other.tokens):
            return True
        n_tokens = len(self.tokens)
        same_length = n_tokens == len(other.tokens)
        return same_length and self.spell(0, n_tokens) == other.spell(0, n_tokens)


@dataclass(frozen=True)
class Member:
    """One model in a group, in evaluation mode.

    Args:
        name: name in tables and figures.
        reference: checkpoint path, or `hf:NAME` or `py:module.function`.
        kind: size, encoding and recurrence, in words.
        reader: reads windows.
        trained: the checkpoint's contents; None for a model from elsewhere.
        tokenize: for a model from elsewhere, maps a text's bytes to its `TokenizedText`.
        findings: further `recl.json` entries, besides `facts`.
    """

    name: str
    reference: str
    kind: str
    reader: WindowReader
    trained: TrainedModel | None = None
    tokenize: Any = None
    findings: Entries = field(default_factory=dict)

    def require(self, condition: bool, allowed: str) -> None:
        """Raise an OptionError that names the model unless `condition` holds."""
        option = MODELS if self.trained is None else CHECKPOINTS
        require(condition, option, self.reference, allowed)

    def finding(self, **entries: Any) -> Member:
        """Return the member with further entries for `recl.json`."""
        return replace(self, findings={**self.findings, **entries})

    def facts(self) -> Entries:
        """Return the `recl.json` entries about the model itself and how it is read."""
        return {
            "checkpoint": self.reference,
            "kind": self.kind,
            "scoring": "one pass" if self.reader.one_pass else "direct",
            "limit": self.reader.limit,
            **self.findings,
        }


@contextmanager
def foreign_errors(reference: str, fault: str) -> Iterator[None]:
    """Report an error in somebody else's code as the model's fault, with its first sentence."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # foreign code has no common error
        line = " ".join(str(error).split())
        reason = line.split(". ")[0] or type(error).__name__
        raise OptionError(MODELS, reference, f"{fault} ({reason})") from error


def load_run(path: str, name: str, clamp_len: int | None) -> Member:
    """Load a run's checkpoint.

    Args:
        path: checkpoint path.
        name: name in tables and figures.
        clamp_len: larger distances share one position; None: the value in the run's evaluation.

    Raises:
        OptionError: the checkpoint cannot be read.
    """
    trained = load_trained(path, option=CHECKPOINTS)
    config = trained.config
    lengths = training_lengths(config)
    run_clamp = trained_clamp(config)
    if clamp_len is None or run_clamp is None:
        clamp_len = run_clamp
    reader = window_reader(trained.model, lengths.window, clamp_len)
    limit_reason = None
    if reader.limit is not None:
        limit_reason = "absolute positions beyond the trained length have no meaning"

    return Member(
        name=name,
        reference=path,
        kind=_kind_of_run(config),
        reader=reader,
        trained=trained,
        findings={
            "limit_reason": limit_reason,
            "sha256": file_checksum(Path(path)),
            "step": trained.step,
            "tokens_trained": trained.step * tokens_per_step(config),
            "trained_len": lengths.farthest_distance + 1,
            "clamp_len": clamp_len,
        },
    )


def _kind_of_run(config: Config) -> str:
    """Return a run's size, encoding, recurrence and variant in words."""
    if isinstance(config.model, RecurrentModelConfig):
        return config.model.name
    memory = "no recurrence"
    if config.memory.mem_len:
        memory = f"memory {config.memory.mem_len}"
    kind = f"{config.model.name}, {config.encoding.name}, {memory}"
    if config.variant:
        kind += f", variant={config.variant['name']}"
    return kind


def vocabulary_speller(vocabulary: Vocabulary, tokens: np.ndarray) -> Speller:
    """Return a speller for a run's tokens."""

    def spell(begin: int, stop: int) -> list[str]:
        decoder = StreamDecoder(vocabulary)
        shown = without_marks(np.asarray(tokens[begin:stop]))
        return [decoder.feed([token]) for token in shown]

    return spell


def load_function(reference: str, name: str) -> Member:
    """Call the function named by `py:module.function` and return its language model.

    The model has `score`. It may have `encode(text: bytes)`, which returns token numbers and each token's number of
    bytes (both [K]; they sum to the text's length), `limit`, the tokens that it can see, and `one_pass`. Without
    `encode` its tokens are bytes. A module is also found in the working directory.

    Raises:
        OptionError: there is no such function, or it returns no language model.
    """
    module_name, _, function_name = reference.removeprefix(FUNCTION).rpartition(".")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    with foreign_errors(reference, "must be py:module.function, without arguments"):
        function = getattr(importlib.import_module(module_name), function_name)
        model = function()
    is_model = isinstance(model, LanguageModel) and not isinstance(model, type)
    allowed = f"must return a model with the method score, not {type(model).__name__}"
    require(is_model, MODELS, reference, allowed)
    if isinstance(model, nn.Module):
        model = model.eval().requires_grad_(False)
    limit = getattr(model, "limit", None)
    limit_reason = None
    if limit is not None:
        limit_reason = "the model's own limit"
    reader = WindowReader(model, limit=limit, one_pass=getattr(model, "one_pass", True))
    return Member(
        name=name,
        reference=reference,
        kind=type(model).__name__,
        reader=reader,
        tokenize=lambda content: _tokens_of_function(model, content, reference),
        findings={"trained_len": limit, "limit_reason": limit_reason},
    )


def _tokens_of_function(model: Any, content: bytes, reference: str) -> TokenizedText:
    """Return the tokens from `model.encode`, or bytes."""
    tokens = np.frombuffer(content, np.uint8)
    sizes = np.ones(len(content), dtype=np.int64)
    level = "byte"
    if hasattr(model, "encode"):
        with foreign_errors(reference, "encode fails"):
            tokens, sizes = map(np.asarray, model.encode(content))
    if len(tokens) < len(content):
        level = "token"
    covers_text = sizes.sum() == len(content) and sizes.min(initial=0) >= 0
    allowed = "encode must return tokens and their sizes, which sum to the bytes given"
    require(
        tokens.shape == sizes.shape and covers_text,
        MODELS,
        reference,
        allowed,
    )
    ends = np.cumsum(sizes)
    starts = ends - sizes

    def spell(begin: int, stop: int) -> list[str]:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        texts = []
        for k in range(begin, stop):
            texts.append(decoder.decode(content[starts[k] : ends[k]]))
        return texts

    return TokenizedText(tokens, level, spell)
