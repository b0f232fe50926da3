"""Every model and its state inside Lightning Fabric: calls and `score`, at every precision of a CPU."""

from typing import Any

import pytest
import torch
from lightning.fabric import Fabric

from tests.model.tiny_model import STATEFUL, VOCABULARY, score_segments, tiny_model

TOKENS = torch.arange(2 * 9).view(2, 9) % VOCABULARY


def in_fabric(model: Any, precision: Any = "32-true") -> Any:
    return Fabric(accelerator="cpu", devices=1, precision=precision).setup_module(model)


@pytest.mark.parametrize("name", STATEFUL)
def test_two_segments_give_the_losses_of_the_bare_model(name):
    model = tiny_model(**STATEFUL[name]).float()
    wrapped = in_fabric(model)
    expected, _ = score_segments(model, TOKENS, [4, 4])
    nll, memory = score_segments(wrapped, TOKENS, [4, 4])
    assert torch.equal(nll, expected)
    hidden, _ = wrapped(TOKENS, memory)
    hidden.sum().backward()


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "32-true"])
def test_score_has_the_precision_of_a_call(precision):
    """By the private `_fabric` and its `_precision`."""
    model = tiny_model(n_layer=1, mem_len=9).float()
    wrapped = in_fabric(model, precision)
    types = []
    attention = model.layers[0].attention
    attention.register_forward_hook(lambda module, inputs, output: types.append(output.dtype))
    hidden, memory = wrapped(TOKENS)
    wrapped.score(TOKENS, TOKENS, memory)[0].mean().backward()
    expected = torch.bfloat16
    if precision == "32-true":
        expected = torch.float32
    assert types == [expected] * 2
    probabilities = model.log_probabilities(hidden).exp()
    torch.testing.assert_close(
        probabilities.sum(-1),
        torch.ones(2, 9),
    )
