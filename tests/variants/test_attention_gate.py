"""Gates behind attention are the published formula."""

import pytest
import torch

from tests.model.tiny_model import assert_close, tiny_model
from tests.variants.one_layer import layer_inputs
from txl_lightning.variants.attention_gate import AttentionGateTransformerXL


@pytest.mark.parametrize(
    ("gates", "width"),
    [("head", 1), ("element", 3)],
)
def test_every_head_or_element_is_multiplied_by_a_gate_of_the_layers_input(gates, width):
    model = tiny_model(AttentionGateTransformerXL, gates=gates, terms="acd")
    attention = model.layers[0].attention
    _, inputs = layer_inputs(model, 3, 3)
    probabilities = attention.logits(*inputs).softmax(-1)
    _, kv = attention.project(
        inputs.hidden,
        inputs.memory,
    )
    heads = []
    for h, W_g in enumerate(attention.gate.weight.split(width)):
        gate = torch.sigmoid(inputs.hidden @ W_g.T)
        heads.append(gate * (probabilities[h] @ kv[-1, h]))
    expected = torch.cat(heads, dim=-1) @ attention.output.weight.T
    assert_close(attention(*inputs), expected, 1e-10)
