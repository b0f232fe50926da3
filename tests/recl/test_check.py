"""Models of Python functions: their tokens, the check of their losses, and their faults."""

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from txl_lightning.errors import OptionError
from txl_lightning.recl.check import checked
from txl_lightning.recl.models import Member, load_function

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


def by_length(tokens_BT: Tensor, targets_BT: Tensor) -> tuple[Tensor, None]:
    """Return losses that depend on the length of the window."""
    return torch.full(
        targets_BT.shape,
        float(tokens_BT.shape[1]),
    ), None


def looking_ahead(tokens_BT: Tensor, targets_BT: Tensor) -> tuple[Tensor, None]:
    """Return losses that depend on the tokens after their targets."""
    return right(tokens_BT.flip(1), targets_BT)


def failing(tokens_BT: Tensor, targets_BT: Tensor) -> tuple[Tensor, None]:
    raise ValueError("no\nsuch table. More.")


def load(model: Any, monkeypatch: pytest.MonkeyPatch) -> Member:
    monkeypatch.setattr(sys.modules[__name__], "make", lambda: model, raising=False)
    member = load_function(f"py:{__name__}.make", "name")
    return checked(
        replace(member, text=member.tokenize(TEXT)),
        [8, 16, 64],
    )


def test_a_function_that_keeps_to_the_interface_reads_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    member = load(Scored(right), monkeypatch)
    text = member.tokenize("aé".encode())
    assert text.tokens.tolist() == [97, 0xC3, 0xA9]
    assert text.level == "byte"
    assert text.spell(0, 3) == ["a", "", "é"]
    assert member.reader.one_pass
    assert load(Scored(right, limit=9), monkeypatch).reader.limit == 9


def test_one_pass_is_not_used_where_it_is_not_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    member = load(Scored(by_length), monkeypatch)
    assert not member.reader.one_pass
    assert member.findings["one_pass_difference"] == 56
    assert not load(Scored(right, one_pass=False), monkeypatch).reader.one_pass


TEXTS = "encode must return tokens and the text of each"
NO_LOSS = "has losses that are not -log P in 0 … 700 nats"
FAULTS: list[tuple[Any, str]] = [
    (Scored(looking_ahead), "must be a causal language model: its losses depend on later tokens"),
    (Scored(failing), r"cannot read 64 tokens \(no such table\)"),
    (
        Scored(lambda tokens, targets: (tokens[:, 1:] / 10, None)),
        r"cannot read 64 tokens \(score must return a loss for each target, and a state\)",
    ),
    (Scored, "cannot read 64 tokens"),
    (
        Scored(
            right,
            encode=lambda text: ([1] * 3, ["a", "b"]),
        ),
        TEXTS,
    ),
    (Scored(lambda tokens, targets: (targets * torch.inf, None)), NO_LOSS),
    (Scored(lambda tokens, targets: (targets * torch.nan, None)), NO_LOSS),
    (Scored(lambda tokens, targets: (targets - 120.0, None)), NO_LOSS),
]


@pytest.mark.parametrize(("model", "words"), FAULTS)
def test_a_fault_of_a_model_is_named(
    model: Any,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(OptionError, match=rf"models=py:{__name__}\.make: {words}"):
        load(model, monkeypatch)


def raises() -> None:
    raise FileNotFoundError("no weights.pt\nhere")


NO_FUNCTIONS = {
    "module": "Empty module name",
    f"{__name__}.nothing": "has no attribute 'nothing'",
    f"{__name__}.raises": "no weights.pt here",
}


@pytest.mark.parametrize("name", NO_FUNCTIONS)
def test_what_is_no_function_is_named(name: str) -> None:
    words = rf"models=py:{name}: must be py:module\.function.*{NO_FUNCTIONS[name]}"
    with pytest.raises(OptionError, match=words) as caught:
        load_function(f"py:{name}", "name")
    assert "\n" not in str(caught.value)
