"""Every model and its state inside Lightning Fabric: calls and `score`, at every precision of a CPU."""

from typing import Any

import pytest
import torch
from lightning.fabric import Fabric

from tests.model.tiny_model import STATEFUL, VOCABULARY, tiny_model

TOKENS = torch.arange(2 * 9).view(2, 9) % VOCABULARY


@pytest.mark.parametrize("name", STATEFUL)
def test_two_segments_give_the_losses_of_the_bare_model(name: str) -> None:
    model: Any = tiny_model(**STATEFUL[name]).float()
    wrapped: Any = Fabric(accelerator="cpu", devices=1, precision="32-true").setup_module(model)
    expected, memory = model(TOKENS)
    hidden, of_fabric = wrapped(TOKENS)
    assert torch.equal(hidden, expected)
    assert type(of_fabric) is type(memory)
    expected, _ = model.score(TOKENS, TOKENS[:, -4:], memory)
    nll, _ = wrapped.score(TOKENS, TOKENS[:, -4:], of_fabric)
    assert torch.equal(nll, expected)
    hidden, _ = wrapped(TOKENS, of_fabric)
    hidden.sum().backward()


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "32-true"])
def test_score_has_the_precision_of_a_call(precision: Any) -> None:
    """By the private `_fabric` and its `_precision`."""
    model: Any = tiny_model(n_layer=1, mem_len=9).float()
    wrapped: Any = Fabric(accelerator="cpu", devices=1, precision=precision).setup_module(model)
    types = []
    model.layers[0].attention.register_forward_hook(
        lambda module, given, output: types.append(output.dtype)
    )
    _, memory = wrapped(TOKENS)
    nll, memory = wrapped.score(TOKENS, TOKENS, memory)
    nll.mean().backward()
    assert types == 2 * [torch.float32 if precision == "32-true" else torch.bfloat16]
    assert memory.filled == 9
    hidden, _ = wrapped(TOKENS)
    torch.testing.assert_close(model.log_probabilities(hidden).exp().sum(-1), torch.ones(2, 9))
