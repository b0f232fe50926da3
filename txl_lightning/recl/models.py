"""Models that `txl recl` compares, and how they tokenize a text.

A `Member` is a run's checkpoint, a causal model from Hugging Face (hf:, see `huggingface`) or the model that a Python
function returns (py:).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.config.lengths import trained_clamp, training_lengths
from txl_lightning.config.schemas import RecurrentModelConfig
from txl_lightning.data.vocabulary import StreamDecoder, Vocabulary, without_marks
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.evaluation.trained import TrainedModel, load_trained
from txl_lightning.files import file_checksum
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
        if np.array_equal(without_marks(self.tokens), without_marks(other.tokens)):
            return True
        n_tokens = len(self.tokens)
        has_length = n_tokens == len(other.tokens)
        return has_length and self.spell(0, n_tokens) == other.spell(0, n_tokens)


@dataclass(frozen=True)
class Member:
    """One model of a group.

    Args:
        reference: checkpoint path, or `hf:NAME` or `py:module.function`.
        kind: size, encoding and recurrence, in words.
        reader: reader of windows.
        findings: further entries of the model in `recl.json`.
        trained: contents of the checkpoint; None for a model from elsewhere.
        tokenize: returns the tokens of a text, for a model from elsewhere.
    """

    reference: str
    kind: str
    reader: WindowReader
    findings: Entries
    trained: TrainedModel | None = None
    tokenize: Any = None

    def require(self, condition: bool, allowed: str) -> None:
        """Raise an OptionError that names the model unless `condition` holds."""
        option = MODELS if self.trained is None else CHECKPOINTS
        require(condition, option, self.reference, allowed)

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


def load_run(path: str) -> Member:
    """Load a checkpoint of a run, with the clamp length of its own evaluation.

    Raises:
        OptionError: the checkpoint cannot be read.
    """
    trained = load_trained(path, option=CHECKPOINTS)
    config = trained.config
    lengths = training_lengths(config)
    clamp_len = trained_clamp(config)
    kind = config.model.name
    if not isinstance(config.model, RecurrentModelConfig):
        kind += f", {config.encoding.name}, memory {config.memory.mem_len}"
    if config.variant:
        kind += f", variant={config.variant['name']}"
    findings = {
        "sha256": file_checksum(Path(path)),
        "step": trained.step,
        "trained_len": lengths.farthest_distance + 1,
        "clamp_len": clamp_len,
    }
    reader = window_reader(trained.model, lengths.window, clamp_len)
    return Member(path, kind, reader, findings, trained)


def tokens_of_run(vocabulary: Vocabulary, tokens: np.ndarray) -> TokenizedText:
    """Return the tokens of a split as a run reads them."""

    def spell(begin: int, stop: int) -> list[str]:
        decoder = StreamDecoder(vocabulary)
        shown = without_marks(np.asarray(tokens[begin:stop]))
        return [decoder.feed([token]) for token in shown]

    return TokenizedText(tokens, vocabulary.level, spell)


def load_function(reference: str) -> Member:
    """Call the function named by `py:module.function` and return its language model.

    The model has `score`. It may have `encode(text: bytes)`, which returns the numbers of its
    tokens and their texts (both [K]), `limit`, the tokens that it can see, and `one_pass`. Without
    `encode` its tokens are bytes. A module is also found in the working directory.

    Raises:
        OptionError: there is no such function.
    """
    module_name, _, function_name = reference.removeprefix(FUNCTION).rpartition(".")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    model = getattr(importlib.import_module(module_name), function_name)()

    def tokenize(content: bytes) -> TokenizedText:
        if not hasattr(model, "encode"):
            return tokens_of_run(Vocabulary("byte"), np.frombuffer(content, np.uint8))
        tokens, texts = model.encode(content)
        has_texts = len(tokens) == len(texts)
        require(has_texts, MODELS, reference, "encode must return tokens and the text of each")
        return TokenizedText(
            np.asarray(tokens),
            "token",
            lambda *place: list(texts[slice(*place)]),
        )

    limit = getattr(model, "limit", None)
    reader = WindowReader(
        model,
        limit=limit,
        one_pass=getattr(model, "one_pass", True),
    )
    return Member(
        reference,
        type(model).__name__,
        reader,
        {},
        tokenize=tokenize,
    )
