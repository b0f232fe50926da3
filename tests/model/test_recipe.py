"""Parts of later recipes: RMSNorm and gated feed-forward."""

import pytest
import torch
from torch.nn import functional as F

from tests.model.tiny_model import SIZES, random_stream, tiny_model


def test_rms_norm_divides_by_the_root_of_the_mean_square():
    norm = tiny_model(norm="rms", layer_norm_epsilon=0.5).layers[0].attention_norm
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    expected = x / (x.pow(2).mean(-1, keepdim=True) + 0.5).sqrt() * norm.weight
    torch.testing.assert_close(norm(x), expected)
    assert [name for name, _ in norm.named_parameters()] == ["weight"]


@pytest.mark.parametrize(("kind", "activation"), [("swiglu", lambda x: x * x.sigmoid()), ("geglu", F.gelu)])
def test_a_gated_feed_forward_is_the_published_formula(kind, activation):
    layer = tiny_model(feed_forward=kind).layers[0].feed_forward
    gate, up, down = (layer.get_submodule(name).weight for name in ("gate", "up", "down"))
    assert [tuple(weight.shape) for weight in layer.parameters()] == [(12, 8), (12, 8), (8, 12)]
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    torch.testing.assert_close(layer(x), (activation(x @ gate.T) * (x @ up.T)) @ down.T)


def test_dropout_of_a_gated_feed_forward_is_after_the_product_and_at_the_end():
    model, shapes = tiny_model(feed_forward="swiglu", dropout=0.2, n_layer=1), []
    layer = model.layers[0].feed_forward
    layer.dropout.register_forward_hook(lambda module, _, output: shapes.append((module.p, tuple(output.shape))))
    model(random_stream(2, 3))
    assert shapes == [(0.2, (2, 3, SIZES["d_inner"])), (0.2, (2, 3, SIZES["d_model"]))]
