"""The gated residual of GTrXL is the published formula."""

import pytest
import torch
from torch import Tensor

from tests.model.tiny_model import SIZES, assert_close, tiny_model
from txl_lightning import TransformerXL, TransformerXLConfig
from txl_lightning.model.positions import VisibleKeys, attention_mask
from txl_lightning.variants.gru_residual import GRUResidualConfig, GRUResidualTransformerXL


def naive_gate(
    weights: dict[str, Tensor],
    x: Tensor,
    y: Tensor,
) -> Tensor:
    """GTrXL's gate of single states, with one matrix for each letter of the paper."""
    W_r, W_z, W_g = weights["gates.weight"].split(8)
    U_r, U_z = weights["input_gates.weight"].split(8)
    rows = []
    for x_t, y_t in zip(
        x.flatten(0, 1),
        y.flatten(0, 1),
        strict=True,
    ):
        y_t = y_t.clamp(min=0)
        r = torch.sigmoid(W_r @ y_t + U_r @ x_t)
        z = torch.sigmoid(W_z @ y_t + U_z @ x_t - weights["b_g"])
        h = torch.tanh(W_g @ y_t + weights["reset.weight"] @ (r * x_t))
        rows.append((1 - z) * x_t + z * h)
    return torch.stack(rows).view_as(x)


@pytest.mark.parametrize("M", [0, 3])
def test_a_gated_residual_is_the_published_layer_in_outputs_and_gradients(M):
    model = tiny_model(GRUResidualTransformerXL, mem_len=M, n_layer=1)
    layer = model.layers[0]
    states = torch.randn(
        2,
        M + 3,
        8,
        dtype=torch.float64,
        requires_grad=True,
    )
    memory, x = states.split([M, 3], dim=1)
    positions = model.encoding.positions(M + 3, -1, x)[0]
    visible = VisibleKeys(attention_mask(3, M, M, None, x))
    ours = layer(x, memory, positions, visible)

    norm = layer.attention_norm
    attended = layer.attention(
        norm(x),
        norm(memory),
        positions,
        visible,
    )
    o = naive_gate(
        dict(layer.attention_residual.named_parameters()),
        x,
        attended,
    )
    after = layer.feed_forward(layer.feed_forward_norm(o))
    naive = naive_gate(
        dict(layer.feed_forward_residual.named_parameters()),
        o,
        after,
    )
    assert_close(ours, naive, 1e-12)

    inputs = [states, *layer.parameters()]
    cotangent = torch.randn_like(naive)
    gradients = torch.autograd.grad(ours, inputs, cotangent, retain_graph=True)
    expected = torch.autograd.grad(naive, inputs, cotangent)
    assert_close(gradients, expected, 1e-10)


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
    y = torch.randn(1, 5, 32)
    share = torch.sigmoid(torch.tensor(2.0))
    torch.testing.assert_close(
        gate(x, y),
        share * x,
        rtol=0.2,
        atol=0.1,
    )
