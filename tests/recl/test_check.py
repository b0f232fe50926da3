"""Models of Python functions: their tokens, the check of their losses, and their faults."""

import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.recl.small_recl import recl
from txl_lightning.errors import OptionError
from txl_lightning.recl.check import checked
from txl_lightning.recl.models import Member, load_function

TOKENS = np.arange(480) % 12 + 97


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
    return torch.full(targets_BT.shape, float(tokens_BT.shape[1])), None


def failing(tokens_BT: Tensor, targets_BT: Tensor) -> tuple[Tensor, None]:
    raise ValueError("no\nsuch table. More.")


def load(model: Any, monkeypatch: pytest.MonkeyPatch) -> Member:
    monkeypatch.setattr(
        sys.modules[__name__],
        "make",
        lambda: model,
        raising=False,
    )
    member = load_function(f"py:{__name__}.make")
    return checked(member, TOKENS, [8, 16, 64])


def test_a_function_that_keeps_to_the_interface_reads_bytes(monkeypatch):
    member = load(Scored(right), monkeypatch)
    text = member.tokenize("aé".encode())
    assert text.tokens.tolist() == [97, 0xC3, 0xA9]
    assert text.level == "byte"
    assert text.spell(0, 3) == ["a", "", "é"]
    assert member.reader.one_pass
    assert load(Scored(right, limit=9), monkeypatch).reader.limit == 9


def test_one_pass_is_not_used_where_it_is_not_exact(monkeypatch):
    member = load(Scored(by_length), monkeypatch)
    assert not member.reader.one_pass
    assert member.findings["one_pass_difference"] == 56
    assert not load(Scored(right, one_pass=False), monkeypatch).reader.one_pass


def looking_ahead(tokens_BT: Tensor, targets_BT: Tensor) -> tuple[Tensor, None]:
    """Return losses that depend on the tokens after their targets."""
    return right(tokens_BT.flip(1), targets_BT)


NO_LOSS = r"cannot be scored \(its losses are not -log P in 0 … 700 nats\)"
FAULTS = [
    (Scored(looking_ahead), "must be a causal language model: its losses depend on later tokens"),
    (Scored(failing), r"cannot be scored \(no such table\)"),
    (
        Scored(lambda tokens, targets: (tokens[:, 1:] / 10, None)),
        r"cannot be scored \(score must return a loss for each target, and a state\)",
    ),
    (Scored, "cannot be scored"),
    (
        Scored(
            right,
            encode=lambda text: ([1] * 3, ["a", "b"]),
        ),
        "encode must return tokens and the text of each",
    ),
    (Scored(lambda tokens, targets: (targets * torch.inf, None)), NO_LOSS),
    (Scored(lambda tokens, targets: (targets * torch.nan, None)), NO_LOSS),
    (Scored(lambda tokens, targets: (targets - 120.0, None)), NO_LOSS),
]


@pytest.mark.parametrize(("model", "words"), FAULTS)
def test_a_fault_of_a_model_is_named(model, words, monkeypatch, tmp_path):
    monkeypatch.setattr(
        sys.modules[__name__],
        "make",
        lambda: model,
        raising=False,
    )
    (tmp_path / "text.txt").write_bytes(bytes(TOKENS.tolist()))
    options = {
        "models": [f"py:{__name__}.make"],
        "data_path": str(tmp_path / "text.txt"),
    }
    with pytest.raises(
        OptionError,
        match=rf"models=py:{__name__}\.make: {words}",
    ):
        recl(tmp_path, **options)
