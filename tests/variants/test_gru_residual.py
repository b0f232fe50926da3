"""The gated residual of GTrXL is the published formula."""

import pytest
import torch
from torch import Tensor, nn

from tests.model.tiny_model import SIZES, assert_same_gradients, tiny_model
from tests.variants.one_layer import layer_inputs
from txl_lightning import TransformerXL, TransformerXLConfig
from txl_lightning.variants.gru_residual import GRUResidualConfig, GRUResidualTransformerXL


def naive_gate(residual: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """GTrXL's gate of single states, with one matrix for each letter of the paper."""
    W_r, W_z, W_g = residual.gates.weight.split(8)
    U_r, U_z = residual.input_gates.weight.split(8)
    rows = []
    inputs = x.flatten(0, 1)
    outputs = y.flatten(0, 1).clamp(min=0)
    for x_t, y_t in zip(inputs, outputs, strict=True):
        r = torch.sigmoid(W_r @ y_t + U_r @ x_t)
        z = torch.sigmoid(W_z @ y_t + U_z @ x_t - residual.b_g)
        h = torch.tanh(W_g @ y_t + residual.reset.weight @ (r * x_t))
        rows.append((1 - z) * x_t + z * h)
    return torch.stack(rows).view_as(x)


@pytest.mark.parametrize("M", [0, 3])
def test_a_gated_residual_is_the_published_layer_in_outputs_and_gradients(M):
    model = tiny_model(GRUResidualTransformerXL, mem_len=M, n_layer=1)
    layer = model.layers[0]
    states, inputs = layer_inputs(model, 3, M)
    norm = layer.attention_norm
    x = norm(inputs.hidden)
    attended = layer.attention(
        x,
        norm(inputs.memory),
        inputs.positions,
        inputs.visible,
    )
    o = naive_gate(layer.attention_residual, inputs.hidden, attended)
    after = layer.feed_forward(layer.feed_forward_norm(o))
    naive = naive_gate(layer.feed_forward_residual, o, after)
    assert_same_gradients(
        layer(*inputs),
        naive,
        [states, *layer.parameters()],
        1e-10,
    )


def n_parameters(model: TransformerXL) -> int:
    return sum(parameter.numel() for parameter in model.layers[0].parameters())


def test_a_new_gate_nearly_returns_its_input_and_has_twelve_more_matrices_in_a_layer():
    sizes = {**SIZES, "d_model": 32}
    gated = GRUResidualTransformerXL(GRUResidualConfig(**sizes))
    plain = TransformerXL(TransformerXLConfig(**sizes))
    assert n_parameters(gated) - n_parameters(plain) == 12 * 32**2 + 2 * 32
    gate = gated.layers[1].feed_forward_residual
    assert gate.b_g.tolist() == [2.0] * 32
    x = torch.randn(1, 5, 32)
    kept = torch.sigmoid(gate.b_g) * x
    torch.testing.assert_close(
        gate(x, torch.randn(1, 5, 32)),
        kept,
        rtol=0.2,
        atol=0.1,
    )
