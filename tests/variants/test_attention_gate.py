"""Gates behind attention are the published formula."""

import pytest
import torch

from tests.model.tiny_model import assert_close, tiny_model
from txl_lightning.model.positions import VisibleKeys, attention_mask
from txl_lightning.variants.attention_gate import AttentionGateTransformerXL


@pytest.mark.parametrize(("gates", "width"), [("head", 1), ("element", 3)])
def test_every_head_or_element_is_multiplied_by_a_gate_of_the_layers_input(gates, width):
    model = tiny_model(AttentionGateTransformerXL, gates=gates, terms="acd")
    attention = model.layers[0].attention
    hidden = torch.randn(2, 3, 8, dtype=torch.float64)
    memory = torch.randn(2, 3, 8, dtype=torch.float64)
    positions = model.encoding.positions(6, -1, hidden)[0]
    visible = VisibleKeys(attention_mask(3, 3, 3, None, hidden))
    probabilities = attention.logits(hidden, memory, positions, visible).softmax(-1)
    _, kv = attention.project(hidden, memory)
    heads = []
    for h, W_g in enumerate(attention.gate.weight.split(width)):
        gate = torch.sigmoid(hidden @ W_g.T)
        heads.append(gate * (probabilities[h] @ kv[-1, h]))
    expected = torch.cat(heads, dim=-1) @ attention.output.weight.T
    assert_close(
        attention(hidden, memory, positions, visible),
        expected,
        1e-10,
    )
