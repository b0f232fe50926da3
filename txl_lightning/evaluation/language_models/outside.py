"""Language models that no run of ours trained: what scoring must know of them, and models of Python functions."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from txl_lightning.errors import OptionError, require
from txl_lightning.evaluation.language_models.tokenized_text import TokenizedText
from txl_lightning.evaluation.scoring.token_losses import device_of
from txl_lightning.model.language_model import LanguageModel

OPTION = "models"
TRIED = 8  # tokens


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
    require(module_name.strip(".") == module_name != "", OPTION, reference, "must be py:module.function")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise OptionError(OPTION, reference, str(error)) from error
    require(_takes_no_arguments(function), OPTION, reference, "must be a function without arguments")
    model = function()
    returned = model.__name__ if isinstance(model, type) else type(model).__name__
    allowed = f"must return a model with the method score, not {'the class ' * isinstance(model, type)}{returned}"
    require(isinstance(model, LanguageModel) and not isinstance(model, type), OPTION, reference, allowed)
    limit = getattr(model, "limit", None)
    allowed = f"must have a limit >= 1 or None, not {limit!r}"
    require(limit is None or (isinstance(limit, int) and limit >= 1), OPTION, reference, allowed)
    if isinstance(model, nn.Module):
        model = model.eval().requires_grad_(False)
    return OutsideModel(
        model=model,
        kind=type(model).__name__,
        checksum=None,
        tokenize=lambda content: _tried(model, _encoded(model, content, reference), reference),
        limit=limit,
        one_pass=getattr(model, "one_pass", True),
    )


def _encoded(model: Any, content: bytes, reference: str) -> TokenizedText:
    if not hasattr(model, "encode"):
        return TokenizedText(np.frombuffer(content, np.uint8), np.arange(len(content)), len(content))
    encoded = [np.asarray(numbers, dtype=np.int64) for numbers in model.encode(content)]
    tokens, sizes = encoded if len(encoded) == 2 else (np.zeros(n, dtype=np.int64) for n in (1, 0))
    fits = tokens.shape == sizes.shape and sizes.sum() == len(content) and sizes.min(initial=0) >= 0
    require(fits, OPTION, reference, "encode must return tokens and their sizes, which sum to the bytes given")
    return TokenizedText(tokens, np.cumsum(sizes) - sizes, len(content))


def _takes_no_arguments(function: Any) -> bool:
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind()
    except TypeError:
        return False
    return True


def _tried(model: Any, text: TokenizedText, reference: str) -> TokenizedText:
    """Return the text if a model scores its first tokens as the interface says.

    Raises:
        OptionError: losses have another shape, those of the last targets differ without the others, or those of a
            window's first tokens differ in a shorter window although `one_pass` is not False.
    """
    length = min(TRIED, getattr(model, "limit", None) or TRIED, len(text.tokens) - 1)
    if length < 2:
        return text
    window_T = torch.from_numpy(text.tokens[: length + 1].astype(np.int64)).to(device_of(model))
    tokens_BT, targets_BT = (part_T.repeat(2, 1) for part_T in (window_T[:-1], window_T[1:]))

    def losses(stop: int, n_targets: int) -> Tensor:
        targets = targets_BT[:, stop - n_targets : stop]
        returned = model.score(tokens_BT[:, :stop], targets, None)
        fits = isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[0], Tensor)
        require(fits, OPTION, reference, "score must return a tensor of losses and a state")
        shapes = f"score must return losses of shape {list(targets.shape)} for such targets"
        require(returned[0].shape == targets.shape, OPTION, reference, f"{shapes}, not {list(returned[0].shape)}")
        return returned[0].float()

    with torch.no_grad():
        whole_BT, last_B1, shorter_BT = losses(length, length), losses(length, 1), losses(length - 1, length - 1)
    allowed = "score must give the last targets the same losses without the others"
    require(_close(whole_BT[:, -1:], last_B1), OPTION, reference, allowed)
    in_one_pass = getattr(model, "one_pass", True)
    allowed = "must have one_pass = False: losses depend on tokens after the target, or on the length of the window"
    require(not in_one_pass or _close(whole_BT[:, :-1], shorter_BT), OPTION, reference, allowed)
    return text


def _close(losses: Tensor, others: Tensor) -> bool:
    return torch.allclose(losses, others, rtol=1e-3, atol=1e-3, equal_nan=True)


def checksum_of(model: nn.Module, description: str = "") -> str:
    """Return the SHA-256 of a description and of the names, types and numbers of all parameters and buffers."""
    digest = hashlib.sha256(description.encode())
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
