"""Gates that forget (FoX): the formula, their start, their limits and their precision."""

import pytest
import torch

from tests.model.tiny_model import (
    assert_same_gradients,
    random_stream,
    score_segments,
    tiny_model,
)
from tests.variants.one_layer import layer_inputs
from txl_lightning.model.attention import Attention
from txl_lightning.variants.forget_gate import ForgetGateConfig, ForgetGateTransformerXL


@pytest.mark.parametrize(
    "options",
    [{}, {"encoding": "none", "terms": ""}],
    ids=str,
)
def test_the_scores_gain_the_logarithms_of_the_gates_of_all_tokens_after_the_key(options):
    T, M = 4, 3
    model = tiny_model(ForgetGateTransformerXL, **options)
    attention = model.layers[0].attention
    states, inputs = layer_inputs(model, T, M)
    gates_BKH = (states @ attention.forget.weight.T + attention.forget.bias).sigmoid()
    log_f = gates_BKH.log().permute(2, 0, 1)
    scores = Attention.logits(attention, *inputs)
    rows = []
    for i in range(T):
        added = []
        for j in range(M + T):
            added.append(log_f[..., j + 1 : M + i + 1].sum(dim=-1))
        rows.append(scores[:, :, i] + torch.stack(added, dim=-1))
    probabilities = torch.stack(rows, dim=2).softmax(dim=-1)
    _, kv = attention.project(
        inputs.hidden,
        inputs.memory,
    )
    naive = attention.combine_heads(probabilities @ kv[-1])
    assert_same_gradients(
        attention(*inputs),
        naive,
        [states, *attention.parameters()],
    )


def test_heads_start_to_forget_over_one_token_to_the_longest_in_geometric_steps():
    sizes = {
        "n_layer": 1,
        "d_model": 8,
        "n_head": 4,
        "d_head": 2,
    }
    model = ForgetGateTransformerXL(ForgetGateConfig(9, **sizes, forget_len=27))
    gates = model.layers[0].attention.forget.bias.sigmoid()
    assert (-1 / gates.log()).tolist() == pytest.approx([1.0, 3.0, 9.0, 27.0], rel=1e-4)


@pytest.mark.parametrize("grad", [True, False])
def test_a_strong_gate_is_exact_in_bfloat16(grad):
    """The bias of early keys reaches -300, where bfloat16 has steps of 2."""
    model = tiny_model(ForgetGateTransformerXL, encoding="none", n_layer=1, mem_len=0).float()
    model.layers[0].attention.forget.bias.data.fill_(-1.0)
    stream = random_stream(2, 200)
    with torch.set_grad_enabled(grad):
        expected, _ = score_segments(model, stream, 199)
        with torch.autocast("cpu", torch.bfloat16):
            found, _ = score_segments(model, stream, 199)
    assert (found - expected).abs().mean() < 0.02 * expected.mean()
