"""Models that are measured together: checkpoints of runs (txl:), and the tokens that each makes of one text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from txl_lightning.config.lengths import extended_context, longest_trained_distance, trained_clamp
from txl_lightning.config.schemas import RecurrentModelConfig
from txl_lightning.data.vocabulary import SENTENCE, Vocabulary, close_sentences, code_points
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.files import file_checksum
from txl_lightning.measure.losses import Integers, WindowReader, window_reader
from txl_lightning.runs.trained import TrainedModel, load_trained

OPTION = "models"


@dataclass(frozen=True)
class TokenizedText:
    """Tokens of a text of n bytes.

    Args:
        tokens: token numbers, [K].
        starts: first byte of each token, [K], ascending from 0; tokens that share a byte (parts of a character) have
            one start. A token ends where the next larger start is, the last one at byte n. None if unknown.
        n_bytes: n.
        documents: first token of each document, ascending from 0; None where they are unknown, are marked in the
            tokens, or do not matter.
    """

    tokens: np.ndarray
    starts: Integers | None
    n_bytes: int
    documents: Integers | None = None

    def document_begins(self, positions: Integers) -> Integers:
        """Return the first token of the document of the token before each position; 0 without documents."""
        if self.documents is None:
            return np.zeros_like(positions)
        return self.documents[np.searchsorted(self.documents, positions - 1, side="right") - 1]

    @property
    def known_starts(self) -> Integers:
        """First byte of each token.

        Raises:
            UserError: it is unknown.
        """
        if self.starts is None:
            raise UserError("the bytes of the tokens are unknown")
        return self.starts


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
    starts: Integers | None = None
    if vocabulary.level == "char":
        starts = character_starts(content.decode())
    elif vocabulary.level == "bpe" and vocabulary.byte_lengths is not None:
        starts = np.cumsum(vocabulary.byte_lengths[tokens]) - vocabulary.byte_lengths[tokens]
    elif vocabulary.level == "byte" and len(tokens) == len(content):
        starts = np.arange(len(content))
    return TokenizedText(tokens, starts, len(content))


def character_starts(text: str) -> Integers:
    """Return the first byte of every character in UTF-8."""
    points = code_points(text).astype(np.int64)
    sizes = 1 + (points >= 0x80) + (points >= 0x800) + (points >= 0x10000)
    return np.cumsum(sizes) - sizes


@dataclass(frozen=True)
class Member:
    """One model of a group, in evaluation mode.

    Args:
        name: name in tables and figures.
        path: path of the checkpoint, or the reference `hf:NAME` or `py:module.function`.
        kind: size, encoding and recurrence, in words.
        checksum: SHA-256 of everything that its losses depend on; None if unknown, then losses are not stored.
        reader: reader of windows.
        tokenize: returns the tokens of a text; raises OptionError if the model cannot read it.
        trained: contents of the checkpoint; None for a model from elsewhere.
        trained_len: tokens that a token saw in training: segment, extended context and memory; of other models the
            positions; None if unknown.
        clamp_len: larger distances share one position; None for other models than Transformer-XL.
        begin_of_text: token read before every window; None for none.
        carries: whether a state carried from segment to segment gives the losses of a whole text.
        option: option that named the model, for errors.
    """

    name: str
    path: str
    kind: str
    checksum: str | None
    reader: WindowReader
    tokenize: Callable[[bytes], TokenizedText]
    trained: TrainedModel | None = None
    trained_len: int | None = None
    clamp_len: int | None = None
    begin_of_text: int | None = None
    carries: bool = True
    option: str = OPTION

    def require(self, condition: bool, allowed: str) -> None:
        """Raise an OptionError that names the model unless `condition` holds."""
        require(condition, self.option, self.path, allowed)


def load_run(path: str, name: str, device: torch.device, clamp_len: int | None, option: str) -> Member:
    """Load a checkpoint of a run to a device.

    Args:
        path: path of the checkpoint.
        name: name in tables and figures.
        device: device of the model.
        clamp_len: larger distances share one position; None for the length of the run's own evaluation.
        option: option that named the checkpoint, for errors.

    Raises:
        OptionError: the checkpoint cannot be read.
    """
    trained = load_trained(path, option=option)
    config, recurrent = trained.config, isinstance(trained.config.model, RecurrentModelConfig)
    own_clamp = trained_clamp(config)
    clamp_len = own_clamp if clamp_len is None or own_clamp is None else clamp_len
    memory = f"memory {config.memory.mem_len}" if config.memory.mem_len else "no recurrence"
    memory += f", beyond={config.beyond['name']}" if config.beyond else ""
    trained.model.to(device)

    def tokenize(content: bytes) -> TokenizedText:
        try:
            return with_vocabulary(trained.vocabulary, content, trained.closed_sentences)
        except UserError as error:
            raise OptionError(option, path, str(error)) from error

    return Member(
        name=name,
        path=path,
        kind=config.model.name if recurrent else f"{config.model.name}, {config.encoding.name}, {memory}",
        checksum=file_checksum(path),
        reader=window_reader(trained.model, config.data.segment_len + extended_context(config), clamp_len),
        tokenize=tokenize,
        trained=trained,
        trained_len=config.data.segment_len if recurrent else longest_trained_distance(config) + 1,
        clamp_len=clamp_len,
        option=option,
    )
