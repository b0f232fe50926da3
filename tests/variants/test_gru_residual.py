"""The gated residual of GTrXL is the published formula."""

import pytest
import torch
from torch import Tensor

from tests.model.tiny_model import SIZES, tiny_model
from txl_lightning import TransformerXL
from txl_lightning.model.positions import VisibleKeys, attention_mask
from txl_lightning.variants.gru_residual import GRUResidualTransformerXL


def naive_gate(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    """GTrXL's gate of single states, with one matrix for each letter of the paper."""
    W_r, W_z, W_g = weights["gates.weight"].split(8)
    U_r, U_z = weights["input_gates.weight"].split(8)
    rows = []
    for x_t, y_t in zip(x.flatten(0, 1), y.flatten(0, 1), strict=True):
        y_t = y_t.clamp(min=0)
        r = torch.sigmoid(W_r @ y_t + U_r @ x_t)
        z = torch.sigmoid(W_z @ y_t + U_z @ x_t - weights["b_g"])
        h = torch.tanh(W_g @ y_t + weights["reset.weight"] @ (r * x_t))
        rows.append((1 - z) * x_t + z * h)
    return torch.stack(rows).view_as(x)


@pytest.mark.parametrize("mem_len", [0, 4])
def test_a_gated_residual_is_the_published_layer_in_outputs_and_gradients(mem_len):
    model = tiny_model(GRUResidualTransformerXL, mem_len=mem_len, n_layer=1)
    layer = model.layers[0]
    x, memory = torch.randn(2, 2, 3, 8, dtype=torch.float64).requires_grad_().unbind()
    memory = memory[:, : mem_len or 0].requires_grad_()
    M = memory.shape[1]
    positions = model.encoding.positions(M + 3, -1, x)[0]
    visible = VisibleKeys(attention_mask(3, M, M, None, x))
    ours = layer(x, memory, positions, visible)

    normed = layer.attention_norm(x)
    memory_normed = layer.attention_norm(memory)
    attended = layer.attention(normed, memory_normed, positions, visible)
    o = naive_gate(dict(layer.attention_residual.named_parameters()), x, attended)
    after = layer.feed_forward(layer.feed_forward_norm(o))
    naive = naive_gate(dict(layer.feed_forward_residual.named_parameters()), o, after)
    torch.testing.assert_close(ours, naive, rtol=1e-12, atol=1e-12)

    inputs = [x, *layer.parameters(), *([memory] if M else [])]
    cotangent = torch.randn_like(naive)
    found, expected = (torch.autograd.grad(y, inputs, cotangent) for y in (ours, naive))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_a_new_gate_nearly_returns_its_input_and_has_twelve_more_matrices_in_a_layer():
    sizes = {**SIZES, "d_model": 32}
    gated, plain = (
        model(model.config_class(**sizes)) for model in (GRUResidualTransformerXL, TransformerXL)
    )
    n_gated, n_plain = (
        sum(p.numel() for p in model.layers[0].parameters()) for model in (gated, plain)
    )
    assert n_gated - n_plain == 12 * 32**2 + 2 * 32
    gate = gated.layers[1].feed_forward_residual
    assert gate.b_g.tolist() == [2.0] * 32
    x, y = torch.randn(2, 1, 5, 32).unbind()
    kept = 1 - torch.sigmoid(torch.tensor(-2.0))
    torch.testing.assert_close(gate(x, y), kept * x, rtol=0.2, atol=0.1)
    assert plain.state_dict().keys() == gated.state_dict().keys() - {
        n for n in gated.state_dict() if "residual" in n
    }
