"""Models of a group: checkpoints of runs (txl:) and models of Python functions (py:)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from txl_lightning.config.lengths import extended_context, longest_trained_distance, trained_clamp
from txl_lightning.config.schemas import Config, RecurrentModelConfig
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.files import file_checksum
from txl_lightning.measure.scoring.tokenized_text import TokenizedText, with_vocabulary
from txl_lightning.measure.scoring.windows import WindowReader, window_reader
from txl_lightning.model.language_model import LanguageModel
from txl_lightning.runs.trained import TrainedModel, load_trained

OPTION = "models"
TRAINED, HUGGING_FACE, FUNCTION = PREFIXES = ("txl:", "hf:", "py:")


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
    option: str = OPTION

    def require(self, condition: bool, allowed: str) -> None:
        """Raise an OptionError that names the model unless `condition` holds."""
        require(condition, self.option, self.path, allowed)


def first_sentence(error: Exception) -> str:
    """Return the first sentence of a foreign error on one line, or its type if it says nothing."""
    return " ".join(str(error).split()).split(". ")[0] or type(error).__name__


@contextmanager
def foreign_errors(reference: str, fault: str) -> Iterator[None]:
    """Raise an OptionError with the fault of a model, and the first sentence, instead of an error of foreign code."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # foreign code has no common error
        raise OptionError(OPTION, reference, f"{fault} ({first_sentence(error)})") from error


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
    trained.model.to(device)

    def tokenize(content: bytes) -> TokenizedText:
        try:
            return with_vocabulary(trained.vocabulary, content, trained.closed_sentences)
        except UserError as error:
            raise OptionError(option, path, str(error)) from error

    return Member(
        name=name,
        path=path,
        kind=config.model.name if recurrent else _kind(config),
        checksum=file_checksum(path),
        reader=window_reader(trained.model, config.data.segment_len + extended_context(config), clamp_len),
        tokenize=tokenize,
        trained=trained,
        trained_len=config.data.segment_len if recurrent else longest_trained_distance(config) + 1,
        clamp_len=clamp_len,
        option=option,
    )


def _kind(config: Config) -> str:
    memory = f"memory {config.memory.mem_len}" if config.memory.mem_len else "no recurrence"
    memory += f", beyond={config.beyond['name']}" if config.beyond else ""
    return f"{config.model.name}, {config.encoding.name}, {memory}"


def load_function(reference: str, name: str) -> Member:
    """Call the function of `py:module.function` and return the language model it returns.

    The model has `score`. It may have `encode(text: bytes)`, which returns token numbers and the bytes of each token
    (both [K]; the bytes sum to the text's), `limit` and `one_pass`. Without `encode` its tokens are bytes. A module
    is also found in the working directory.

    Raises:
        OptionError: there is no such function, or it returns no language model.
    """
    module_name, _, function_name = reference.removeprefix(FUNCTION).rpartition(".")
    require(module_name.strip(".") == module_name != "", OPTION, reference, "must be py:module.function")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    with foreign_errors(reference, "must be a function without arguments that returns a model"):
        model = getattr(importlib.import_module(module_name), function_name)()
    fits = isinstance(model, LanguageModel) and not isinstance(model, type)
    require(fits, OPTION, reference, f"must return a model with the method score, not {type(model).__name__}")
    limit = getattr(model, "limit", None)
    fits = limit is None or (isinstance(limit, int) and limit >= 1)
    require(fits, OPTION, reference, f"must have a limit >= 1 or None, not {limit!r}")
    if isinstance(model, nn.Module):
        model = model.eval().requires_grad_(False)
    reader = WindowReader(model, limit=limit, one_pass=getattr(model, "one_pass", True))
    tokenize = partial(_encoded, model, reference)
    return Member(name, reference, type(model).__name__, None, reader, tokenize, trained_len=limit)


def _encoded(model: Any, reference: str, content: bytes) -> TokenizedText:
    if not hasattr(model, "encode"):
        return TokenizedText(np.frombuffer(content, np.uint8), np.arange(len(content)), len(content))
    tokens, *others = (np.asarray(numbers, dtype=np.int64) for numbers in model.encode(content))
    sizes = others[0] if len(others) == 1 else np.zeros(0, dtype=np.int64)
    fits = tokens.shape == sizes.shape and sizes.sum() == len(content) and sizes.min(initial=0) >= 0
    require(fits, OPTION, reference, "encode must return tokens and their sizes, which sum to the bytes given")
    return TokenizedText(tokens, np.cumsum(sizes) - sizes, len(content))
