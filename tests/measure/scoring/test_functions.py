"""Models of Python functions that do not keep to the interface: each is named with its fault."""

import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from txl_lightning.errors import OptionError
from txl_lightning.measure.models import Member, load_function
from txl_lightning.measure.elsewhere import checked

TEXT = b"abcdefghijkl" * 40


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


def looking(tokens_BT: Tensor, targets_BT: Tensor) -> tuple[Tensor, None]:
    """Return losses that depend on tokens more than 300 places later."""
    losses_BT = tokens_BT / 100 + nn.functional.pad(tokens_BT[:, 300:] / 100, (0, min(300, tokens_BT.shape[1])))
    return losses_BT[:, -targets_BT.shape[1] :], None


def noisy(tokens_BT: Tensor, targets_BT: Tensor) -> tuple[Tensor, None]:
    return torch.rand(targets_BT.shape), None


def failing(tokens_BT: Tensor, targets_BT: Tensor) -> tuple[Tensor, None]:
    raise ValueError("no\nsuch table. More.")


MODELS: list[tuple[Any, str]] = [
    (Scored(of_window), "must have one_pass = False"),
    (Scored(looking), "must be a causal language model: losses of Scored depend on later tokens"),
    (Scored(looking, one_pass=False), "must be a causal language model: losses of Scored depend on later tokens"),
    (Scored(noisy), "must give the same tokens the same losses each time"),
    (Scored(failing), r"cannot read \d+ tokens \(no such table\)"),
    (Scored(lambda tokens, targets: (tokens[:, : targets.shape[1]] / 10, None)), "score must give the last targets"),
    (Scored(lambda tokens, targets: (tokens / 10, None)), r"score must return .* \[2, 1\] for such targets"),
    (Scored(lambda tokens, targets: targets.float()), "score must return a tensor of losses of shape"),
    (Scored, "must return a model with the method score, not type"),
    (Scored(right, limit=0), "must have a limit >= 1 or None, not 0"),
    (Scored(right, encode=lambda text: ([1] * 3, [len(text) + 2, -1, -1])), "encode must return tokens and their"),
    (Scored(right, encode=lambda text: ([1], [1])), "encode must return tokens and their sizes"),
]


def load(model: Any, monkeypatch: pytest.MonkeyPatch) -> Member:
    monkeypatch.setattr(sys.modules[__name__], "make", lambda: model, raising=False)
    member = load_function(f"py:{__name__}.make", "name")
    return tried(member, member.tokenize(TEXT), len(TEXT))


@pytest.mark.parametrize("model", [Scored(right), Scored(of_window, one_pass=False)])
def test_a_model_that_keeps_to_the_interface_reads_bytes(model: Scored, monkeypatch: pytest.MonkeyPatch) -> None:
    member = load(model, monkeypatch)
    assert member.tokenize(TEXT).tokens.tolist() == list(TEXT)
    assert len(member.tokenize(b"ab").tokens) == 2


@pytest.mark.parametrize(("model", "words"), MODELS)
def test_a_fault_of_a_model_is_named(model: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match=rf"models=py:{__name__}\.make: {words}"):
        load(model, monkeypatch)


def needs_an_argument(argument: object) -> None:
    raise AssertionError(argument)


def raises() -> None:
    raise FileNotFoundError("no weights.pt\nhere")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *((name, r"must be py:module\.function") for name in ("module", ".module.function")),
        ("no_such_module.function", r"must be a function .*No module named"),
        (f"{__name__}.nothing", "must be a function .*has no attribute 'nothing'"),
        (f"{__name__}.needs_an_argument", "must be a function without arguments"),
        (f"{__name__}.raises", r"must be a function .* that returns a model \(no weights.pt here\)"),
    ],
)
def test_what_is_no_function_is_named(name: str, words: str) -> None:
    with pytest.raises(OptionError, match=f"models=py:{name}: {words}") as caught:
        load_function(f"py:{name}", "name")
    assert "\n" not in str(caught.value)
