"""The compressed memory: what it holds, how far it reaches, and what trains the compressor."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.covering import product_of
from tests.model.tiny_model import assert_close, random_stream, score_segments, tiny_model
from txl_lightning.variants.compressive import CompressiveTransformerXL

LENGTHS = {"mem_len": 4, "compressed_len": 2, "rate": 2}


def compressive(**options: object) -> CompressiveTransformerXL:
    return tiny_model(
        CompressiveTransformerXL,
        **{**LENGTHS, "compression": "conv", **options},
    )


def gradients(model: torch.nn.Module, loss: Tensor) -> dict[str, Tensor]:
    """Gradients of a loss by parameter, without those that it does not reach."""
    model.zero_grad()
    loss.backward(retain_graph=True)
    reached = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and parameter.grad.any():
            reached[name] = parameter.grad
    return reached


LIKE_ANY_KEYS = [
    {},
    {"same_length": True, "clamp_len": 5},
    {"memory_start": "zeros"},
    {"encoding": "alibi"},
    {"encoding": "rope", "d_head": 4},
    {"encoding": "none"},
]


@pytest.mark.parametrize(
    ("options", "compression"),
    product_of(LIKE_ANY_KEYS, ["max", "mean"]),
)
def test_rate_one_is_an_ordinary_memory_of_the_summed_length(options, compression):
    """At rate 1 a pool of one state is that state."""
    lengths = {"mem_len": 4, "compressed_len": 3, "rate": 1}
    ours = compressive(
        compression=compression,
        **lengths,
        **options,
    )
    ordinary = tiny_model(mem_len=7, **options)
    stream = random_stream(2, 34)
    for segments in (4, [6, 1, 5, 12, 2, 7]):
        expected, plain = score_segments(ordinary, stream, segments)
        nll, memory = score_segments(ours, stream, segments)
        assert_close(nll, expected, 1e-12)
        assert_close(memory.states, plain.states, 1e-12)
        wanted = gradients(ordinary, expected.mean())
        assert_close(
            gradients(ours, nll.mean()),
            wanted,
            1e-12,
        )


@pytest.mark.parametrize("rate", [1, 3])
@pytest.mark.parametrize("compression", ["max", "mean", "conv"])
def test_a_group_becomes_one_state(compression, rate):
    function = compressive(compression=compression, rate=rate).compressor.functions[0]
    groups = torch.randn(
        2,
        3,
        rate,
        8,
        dtype=torch.float64,
    )
    if compression == "mean":
        expected = groups.mean(dim=2)
    elif compression == "max":
        expected = groups.amax(dim=2)
    else:
        expected = torch.einsum("bgki,oik->bgo", groups, function.weight)
    assert_close(
        function(groups.flatten(1, 2)),
        expected,
    )


def test_a_convolution_starts_near_the_mean():
    function = compressive().compressor.functions[0]
    groups = torch.randn(
        2,
        3,
        2,
        8,
        dtype=torch.float64,
    )
    function.weight.data.zero_()
    function.initialize()
    assert_close(
        function(groups.flatten(1, 2)),
        groups.mean(dim=2),
    )


@pytest.mark.parametrize("compression", ["max", "mean", "conv"])
def test_groups_do_not_depend_on_how_the_stream_is_cut(compression):
    """A layer's inputs depend on the cut, but those of the first layer are embeddings."""
    model = compressive(compression=compression, compressed_len=5)
    stream = random_stream(2, 22)
    embedded = model.embedding(stream)
    # 21 states: 16 fall out, 5 stay.
    compressed = model.compressor.functions[0](embedded[:, 6:16])
    expected = torch.cat(
        [compressed, embedded[:, 16:21]],
        dim=1,
    )
    for segments in (4, 1, [3, 5, 1, 7, 2, 3], [21]):
        _, memory = score_segments(model, stream, segments)
        assert memory.n_compressed == 5
        assert_close(memory.states[0], expected)


@pytest.mark.parametrize("pre_norm", [False, True])
def test_the_loss_reaches_the_compressors_parameters_alone(pre_norm):
    model = compressive(pre_norm=pre_norm)
    stream = random_stream(2, 25)
    _, memory = score_segments(
        model,
        stream[:, :-4],
        4,
    )
    tokens = stream[:, -5:-1]
    targets = stream[:, -4:]
    hidden, after = model(tokens, memory)
    alone = model.losses(hidden, targets)
    nll, memory = model.score(
        tokens,
        targets,
        memory,
    )
    assert after.compression_loss > 0
    assert memory.compression_loss is None
    assert not memory.states.requires_grad
    assert torch.equal(nll, alone)
    of_loss = gradients(model, after.compression_loss)
    of_tokens = gradients(model, alone.mean())
    compressor = {name for name, _ in model.named_parameters() if name.startswith("compressor.")}
    assert of_loss.keys() == compressor
    assert not of_tokens.keys() & compressor
    assert_close(
        gradients(model, nll.mean()),
        of_tokens | of_loss,
    )


def content_attention(layer: Any, hidden: Tensor, memory: Tensor) -> Tensor:
    """softmax((h Q)(m K)ᵀ / sqrt(E)) (m V), by head."""
    heads = layer.attention.qkv.weight.detach().unflatten(0, (3, 2, 3))
    q = torch.einsum(
        "btd,hed->bhte",
        hidden,
        heads[0],
    )
    k = torch.einsum(
        "bkd,hed->bhke",
        memory,
        heads[1],
    )
    v = torch.einsum(
        "bkd,hed->bhke",
        memory,
        heads[2],
    )
    return (q @ k.mT / 3**0.5).softmax(-1) @ v


@pytest.mark.parametrize("pre_norm", [False, True])
def test_the_reconstruction_loss_is_that_of_algorithm_2(pre_norm):
    model = compressive(pre_norm=pre_norm)
    stream = random_stream(2, 13)
    _, memory = score_segments(
        model,
        stream[:, :9],
        4,
    )
    inputs = []
    for layer in model.layers:
        layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    _, after = model(
        stream[:, 8:12],
        memory,
    )
    total = 0.0
    for n, layer in enumerate(model.layers):
        hidden = layer.attention_input(inputs[n])
        # The 4 oldest ordinary states, and their compression.
        old = layer.attention_input(memory.states[n, :, -4:])
        new = layer.attention_input(after.states[n, :, :2])
        difference = content_attention(layer, hidden, old) - content_attention(layer, hidden, new)
        total = total + difference.square().mean()
    torch.testing.assert_close(
        after.compression_loss,
        total,
        check_dtype=False,
    )


def test_there_is_no_loss_without_gradients_or_parameters():
    stream = random_stream(1, 13)
    _, memory = score_segments(
        compressive(compression="max"),
        stream,
        4,
    )
    assert memory.compression_loss is None
    with torch.no_grad():
        _, memory = score_segments(
            compressive(),
            stream,
            4,
        )
    assert memory.compression_loss is None
