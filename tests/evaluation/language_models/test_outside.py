"""Models of Python functions that do not keep to the interface: each is named with its fault."""

from typing import Any

import pytest
import torch
from torch import Tensor

from txl_lightning.errors import OptionError
from txl_lightning.evaluation.language_models.outside import load_function

TEXT = b"abcdefghijkl"
HERE = "tests.evaluation.language_models.test_outside"


class Scored:
    """A model whose losses a function computes from tokens and targets."""

    def __init__(self, losses: Any, **attributes: Any) -> None:
        self.losses = losses
        vars(self).update(attributes)

    def score(self, tokens_BT: Tensor, targets_BT: Tensor, state: Any = None) -> Any:
        return self.losses(tokens_BT, targets_BT)


def right(tokens_BT: Tensor, targets_BT: Tensor) -> tuple[Tensor, None]:
    return tokens_BT[:, -targets_BT.shape[1] :] / 100, None


def of_window(tokens_BT: Tensor, targets_BT: Tensor) -> tuple[Tensor, None]:
    return torch.full(targets_BT.shape, float(tokens_BT.shape[1])), None


def make_right() -> Scored:
    return Scored(right)


def make_direct() -> Scored:
    return Scored(of_window, one_pass=False)


def make_ahead() -> Scored:
    return Scored(of_window)


def make_first() -> Scored:
    return Scored(lambda tokens_BT, targets_BT: (tokens_BT[:, : targets_BT.shape[1]] / 10, None))


def make_all() -> Scored:
    return Scored(lambda tokens_BT, targets_BT: (tokens_BT / 10, None))


def make_means() -> Scored:
    return Scored(lambda tokens_BT, targets_BT: (targets_BT.float().mean(dim=1), None))


def make_losses_alone() -> Scored:
    return Scored(lambda tokens_BT, targets_BT: targets_BT.float())


def make_arrays() -> Scored:
    return Scored(lambda tokens_BT, targets_BT: (targets_BT.numpy(), None))


def make_class() -> type:
    return Scored


def make_limit() -> Scored:
    return Scored(right, limit=0)


def make_sizes() -> Scored:
    return Scored(right, encode=lambda text: ([1] * 3, [len(text) + 2, -1, -1]))


def make_three() -> Scored:
    return Scored(right, encode=lambda text: ([1], [2], [3]))


def make_from(argument: object) -> None:
    raise AssertionError(argument)


@pytest.mark.parametrize("name", ["make_right", "make_direct"])
def test_a_model_that_keeps_to_the_interface_reads_bytes(name: str) -> None:
    assert load_function(f"{HERE}.{name}").tokenize(TEXT).tokens.tolist() == list(TEXT)
    assert len(load_function(f"{HERE}.{name}").tokenize(b"ab").tokens) == 2


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("make_ahead", "must have one_pass = False"),
        ("make_first", "score must give the last targets the same losses"),
        ("make_all", r"score must return losses of shape \[2, 1\] for such targets, not \[2, 8\]"),
        ("make_means", r"score must return losses of shape \[2, 8\] for such targets, not \[2\]"),
        ("make_losses_alone", "score must return a tensor of losses and a state"),
        ("make_arrays", "score must return a tensor of losses and a state"),
        ("make_class", "must return a model with the method score, not the class Scored"),
        ("make_limit", "must have a limit >= 1 or None, not 0"),
        ("make_sizes", "encode must return tokens and their sizes"),
        ("make_three", "encode must return tokens and their sizes"),
        ("make_from", "must be a function without arguments"),
        ("HERE", "must be a function without arguments"),
    ],
)
def test_a_fault_of_a_model_is_named(name: str, words: str) -> None:
    with pytest.raises(OptionError, match=f"models=py:{HERE}.{name}: {words}"):
        load_function(f"{HERE}.{name}").tokenize(TEXT)


@pytest.mark.parametrize("name", ["", "module", ".module.function", "module..function"])
def test_a_name_without_a_module_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match=r"must be py:module\.function"):
        load_function(name)
