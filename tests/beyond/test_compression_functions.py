"""Each compression function against a direct computation, state by state."""

import pytest
import torch
from torch import Tensor

from tests.model.tiny_model import random_stream, score_segments, tiny_model
from txl_lightning.beyond.compressive import (
    FUNCTIONS,
    CompressionFunction,
    CompressiveMemory,
    CompressiveTransformerXL,
)

D, G = 5, 3


def function_and_states(name: str, rate: int) -> tuple[CompressionFunction, Tensor]:
    torch.manual_seed(rate)
    function = FUNCTIONS[name](D, rate).double()
    return function, torch.randn(2, G * rate + function.lookahead, D, dtype=torch.float64)


@pytest.mark.parametrize("rate", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["max", "mean", "conv", "dilated"])
def test_a_group_becomes_one_state(name: str, rate: int) -> None:
    function, states = function_and_states(name, rate)
    weights = {key: weight.detach() for key, weight in function.named_parameters()}
    expected = torch.zeros(2, G, D, dtype=torch.float64)
    for g in range(G):
        group = [states[:, g * rate + k] for k in range(rate)]
        if name == "max":
            expected[:, g] = torch.stack(group).max(dim=0).values
        elif name == "mean":
            expected[:, g] = torch.stack(group).sum(dim=0) / rate
        elif name == "conv":
            expected[:, g] = sum(x @ weights["convolution.weight"][:, :, k].T for k, x in enumerate(group))
        else:
            for k in range(rate):
                s = g * rate + 2 * k
                pair = sum(states[:, s + i] @ weights["pairs.weight"][:, :, i].T for i in range(2))
                expected[:, g] += pair @ weights["convolution.weight"][:, :, k].T
    torch.testing.assert_close(function(states), expected)


@pytest.mark.parametrize("rate", [1, 2, 3, 4])
def test_the_most_used_states_stay_in_their_order(rate: int) -> None:
    function, states = function_and_states("most_used", rate)
    usage = torch.rand(2, G * rate, dtype=torch.float64)
    found = function(states, usage)
    for b in range(2):
        ranked = sorted(range(G * rate), key=lambda s: -float(usage[b, s]))[:G]
        assert torch.equal(found[b], states[b, sorted(ranked)])


@pytest.mark.parametrize("name", ["conv", "dilated"])
def test_a_convolution_starts_near_a_mean(name: str) -> None:
    function, states = function_and_states(name, 4)
    for parameter in function.parameters():
        torch.nn.init.zeros_(parameter)
    for convolution in function.children():
        convolution.add_mean()  # type: ignore[operator]
    n_read = 4 + function.lookahead
    expected = torch.stack([states[:, 4 * g : 4 * g + n_read].mean(dim=1) for g in range(G)], dim=1)
    torch.testing.assert_close(function(states), expected)


@pytest.mark.parametrize("pre_norm", [False, True])
def test_the_model_keeps_the_states_that_it_attends_to_most(pre_norm: bool) -> None:
    """The probabilities are taken from the attention itself while the model runs."""
    options = {"mem_len": 4, "compressed_len": 2, "compression": "most_used", "rate": 2, "pre_norm": pre_norm}
    model = tiny_model(CompressiveTransformerXL, **options)
    stream = random_stream(3, 17)
    _, memory = score_segments(model, stream[:, :13], 4)
    seen: list[Tensor] = []
    for layer in model.layers:
        attention = layer.attention
        attention.dropout.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    _, after = model.score(stream[:, 12:16], stream[:, 13:17], memory)
    assert isinstance(after, CompressiveMemory)
    for n in range(2):
        usage = seen[n].unflatten(0, (2, 3)).mean(dim=(0, 2))
        torch.testing.assert_close(model.layers[n].usage_BK, usage)
        for b in range(3):
            kept = sorted(usage[b, 2:6].topk(2).indices.tolist())  # the 4 states of the ordinary memory fall out
            assert torch.equal(after.states[n, b, :2], memory.states[n, b, 2:6][kept])
