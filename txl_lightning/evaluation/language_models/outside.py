"""Language models that no run of ours trained: what scoring must know of them, and models of Python functions."""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from txl_lightning.errors import OptionError
from txl_lightning.evaluation.language_models.tokenized_text import TokenizedText
from txl_lightning.model.language_model import LanguageModel

OPTION = "models"


@dataclass(frozen=True)
class OutsideModel:
    """Language model from elsewhere.

    Args:
        model: the model, in evaluation mode, on the CPU.
        kind: kind in tables.
        checksum: SHA-256 of everything its losses depend on; None if unknown, then losses are not stored.
        tokenize: returns the tokens of a text; raises OptionError if it cannot.
        limit: tokens that it can see; None for no limit.
        one_pass: whether the losses of a window's first tokens are those of a shorter window.
        begin_of_text: token read before every window; None for none.
    """

    model: LanguageModel
    kind: str
    checksum: str | None
    tokenize: Callable[[bytes], TokenizedText]
    limit: int | None = None
    one_pass: bool = True
    begin_of_text: int | None = None


def load_function(name: str) -> OutsideModel:
    """Call `module.function` and return the language model it returns.

    The model has `score`. It may have `encode(text: bytes)`, which returns token numbers and the bytes of each token
    (both [K]; the bytes sum to the text's), `limit` and `one_pass`. Without `encode` its tokens are bytes. A module
    is also found in the working directory.

    Raises:
        OptionError: there is no such function, or it returns no language model.
    """
    reference = f"py:{name}"
    module_name, _, function_name = name.rpartition(".")
    if not module_name:
        raise OptionError(OPTION, reference, "must be py:module.function")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise OptionError(OPTION, reference, str(error)) from error
    model = function()
    if not isinstance(model, LanguageModel):
        raise OptionError(OPTION, reference, f"must return a model with the method score, not {type(model).__name__}")
    if isinstance(model, nn.Module):
        model = model.eval().requires_grad_(False)
    return OutsideModel(
        model=model,
        kind=type(model).__name__,
        checksum=None,
        tokenize=lambda content: _encoded(model, content, reference),
        limit=getattr(model, "limit", None),
        one_pass=getattr(model, "one_pass", True),
    )


def _encoded(model: Any, content: bytes, reference: str) -> TokenizedText:
    if not hasattr(model, "encode"):
        return TokenizedText(np.frombuffer(content, np.uint8), np.arange(len(content)), len(content))
    tokens, sizes = (np.asarray(numbers, dtype=np.int64) for numbers in model.encode(content))
    if tokens.shape != sizes.shape or sizes.sum() != len(content):
        raise OptionError(OPTION, reference, "encode must return tokens and their sizes, which sum to the bytes given")
    return TokenizedText(tokens, np.cumsum(sizes) - sizes, len(content))


def checksum_of(model: nn.Module, description: str = "") -> str:
    """Return the SHA-256 of a description and of the names, types and numbers of all parameters and buffers."""
    digest = hashlib.sha256(description.encode())
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
