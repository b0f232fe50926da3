"""Gates that forget (FoX): the formula, their start, their limits and their precision."""

import pytest
import torch

from tests.model.tiny_model import random_stream, tiny_model
from txl_lightning.model.attention import Attention
from txl_lightning.model.positions import VisibleKeys, attention_mask
from txl_lightning.variants.forget_gate import ForgetGateConfig, ForgetGateTransformerXL


@pytest.mark.parametrize("options", [{}, {"encoding": "none", "terms": ""}], ids=str)
def test_the_scores_gain_the_logarithms_of_the_gates_of_all_tokens_after_the_key(options):
    T = 4
    M = 3
    model = tiny_model(ForgetGateTransformerXL, **options)
    attention = model.layers[0].attention
    states = torch.randn(2, M + T, 8, dtype=torch.float64).requires_grad_()
    memory = states[:, :M]
    hidden = states[:, M:]
    positions = model.encoding.positions(M + T, -1, hidden)[0]
    visible = VisibleKeys(attention_mask(T, M, M, None, hidden))
    scores = Attention.logits(attention, hidden, memory, positions, visible)
    log_f = (
        (states @ attention.forget.weight.T + attention.forget.bias).sigmoid().log()
    )  # B × K × H
    added = [
        torch.stack([log_f[:, j + 1 : M + i + 1].sum(dim=1) for j in range(M + T)], dim=-1)
        for i in range(T)
    ]
    probabilities = (scores + torch.stack(added).permute(2, 1, 0, 3)).softmax(
        dim=-1
    )  # added: T × B × H × K
    naive = attention.combine_heads(probabilities @ attention.project(hidden, memory)[1][-1])
    ours = attention(hidden, memory, positions, visible)
    torch.testing.assert_close(ours, naive, rtol=1e-10, atol=1e-10)
    inputs = [states, *attention.parameters()]
    cotangent = torch.randn_like(naive)
    found, expected = (
        torch.autograd.grad(y, inputs, cotangent, retain_graph=True) for y in (ours, naive)
    )
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_heads_start_to_forget_over_one_token_to_the_longest_in_geometric_steps():
    longest = 27
    model = ForgetGateTransformerXL(
        ForgetGateConfig(9, n_layer=2, d_model=8, n_head=4, d_head=2, forget_len=longest)
    )
    for layer in model.layers:
        lengths = -1 / layer.attention.forget.bias.double().sigmoid().log()
        expected = torch.tensor(
            [1.0, longest ** (1 / 3), longest ** (2 / 3), longest], dtype=torch.float64
        )
        torch.testing.assert_close(lengths, expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize("grad", [True, False])
def test_a_strong_gate_is_exact_in_bfloat16(grad):
    """The bias of early keys reaches -300, where bfloat16 has steps of 2."""
    model = tiny_model(ForgetGateTransformerXL, encoding="none", n_layer=1, mem_len=0).float()
    model.layers[0].attention.forget.bias.data.fill_(-1.0)
    stream = random_stream(2, 200)
    with torch.set_grad_enabled(grad):
        expected = model.score(stream[:, :-1], stream[:, 1:])[0]
        with torch.autocast("cpu", torch.bfloat16):
            found = model.score(stream[:, :-1], stream[:, 1:])[0]
    assert (found - expected).abs().mean() < 0.02 * expected.mean()
