"""Gates that forget (FoX): the formula, their start, their limits and their precision."""

import pytest
import torch

from tests.model.tiny_model import assert_close, random_stream, tiny_model
from txl_lightning.model.attention import Attention
from txl_lightning.model.positions import VisibleKeys, attention_mask
from txl_lightning.variants.forget_gate import ForgetGateConfig, ForgetGateTransformerXL


@pytest.mark.parametrize(
    "options",
    [{}, {"encoding": "none", "terms": ""}],
    ids=str,
)
def test_the_scores_gain_the_logarithms_of_the_gates_of_all_tokens_after_the_key(options):
    T = 4
    M = 3
    model = tiny_model(ForgetGateTransformerXL, **options)
    attention = model.layers[0].attention
    states = torch.randn(
        2,
        M + T,
        8,
        dtype=torch.float64,
        requires_grad=True,
    )
    memory, hidden = states.split([M, T], dim=1)
    positions = model.encoding.positions(M + T, -1, hidden)[0]
    visible = VisibleKeys(attention_mask(T, M, M, None, hidden))
    gates_BKH = (states @ attention.forget.weight.T + attention.forget.bias).sigmoid()
    log_f = gates_BKH.log().permute(2, 0, 1)
    scores = Attention.logits(attention, hidden, memory, positions, visible)
    rows = []
    for i in range(T):
        added = []
        for j in range(M + T):
            added.append(log_f[..., j + 1 : M + i + 1].sum(dim=-1))
        rows.append(scores[:, :, i] + torch.stack(added, dim=-1))
    probabilities = torch.stack(rows, dim=2).softmax(dim=-1)
    _, kv = attention.project(hidden, memory)
    naive = attention.combine_heads(probabilities @ kv[-1])
    ours = attention(hidden, memory, positions, visible)
    assert_close(ours, naive, 1e-10)
    inputs = [states, *attention.parameters()]
    cotangent = torch.randn_like(naive)
    gradients = torch.autograd.grad(ours, inputs, cotangent, retain_graph=True)
    expected = torch.autograd.grad(naive, inputs, cotangent)
    torch.testing.assert_close(gradients, expected, rtol=1e-9, atol=1e-9)


def test_heads_start_to_forget_over_one_token_to_the_longest_in_geometric_steps():
    sizes = {
        "n_layer": 1,
        "d_model": 8,
        "n_head": 4,
        "d_head": 2,
    }
    model = ForgetGateTransformerXL(ForgetGateConfig(9, **sizes, forget_len=27))
    gates = model.layers[0].attention.forget.bias.sigmoid()
    expected = torch.tensor([1.0, 3.0, 9.0, 27.0])
    torch.testing.assert_close(
        -1 / gates.log(),
        expected,
        rtol=1e-4,
        atol=0,
    )


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
