"""The compressed memory: what it holds, how far it reaches, and what trains the compressor."""

import pytest
import torch
from torch import Tensor

from tests.covering import product_of
from tests.model.tiny_model import assert_close, random_stream, score_segments, tiny_model
from txl_lightning.variants.compressive import CompressiveTransformerXL

LENGTHS = {"mem_len": 4, "compressed_len": 2, "rate": 2}


def compressive(**options: object) -> CompressiveTransformerXL:
    return tiny_model(CompressiveTransformerXL, **{**LENGTHS, "compression": "conv", **options})


def gradients(model: torch.nn.Module, loss: Tensor) -> dict[str, Tensor]:
    """Gradients of a loss by parameter, without those that it does not reach."""
    named = dict(model.named_parameters())
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True, retain_graph=True)
    return {
        name: grad
        for name, grad in zip(named, found, strict=True)
        if grad is not None and grad.any()
    }


LIKE_ANY_KEYS = [{}, {"same_length": True, "clamp_len": 5}, {"memory_start": "zeros"}]
LIKE_ANY_KEYS += [{"encoding": "alibi"}, {"encoding": "rope", "d_head": 4}, {"encoding": "none"}]


@pytest.mark.parametrize(("options", "compression"), product_of(LIKE_ANY_KEYS, ["max", "mean"]))
def test_rate_one_is_an_ordinary_memory_of_the_summed_length(options, compression):
    """At rate 1 a pool of one state is that state."""
    ordinary = tiny_model(mem_len=7, **options)
    ours = tiny_model(
        CompressiveTransformerXL,
        mem_len=4,
        compressed_len=3,
        compression=compression,
        rate=1,
        **options,
    )
    stream = random_stream(2, 34)
    for segments in (4, [6, 1, 5, 12, 2, 7]):
        expected, plain = score_segments(ordinary, stream, segments)
        found, memory = score_segments(ours, stream, segments)
        assert_close(found, expected, 1e-12)
        assert_close(memory.states, plain.states, 1e-12)
        wanted = gradients(ordinary, expected.mean())
        reached = gradients(ours, found.mean())
        assert_close(reached, wanted, 1e-12)


@pytest.mark.parametrize("rate", [1, 2, 3])
@pytest.mark.parametrize("compression", ["max", "mean", "conv"])
def test_a_group_becomes_one_state(compression, rate):
    function = compressive(compression=compression, rate=rate).compressor.functions[0]
    groups = torch.randn(2, 3, rate, 8, dtype=torch.float64)
    expected = groups.mean(dim=2) if compression == "mean" else groups.max(dim=2).values
    if compression == "conv":
        expected = sum(x @ function.weight[:, :, k].T for k, x in enumerate(groups.unbind(2)))
    torch.testing.assert_close(function(groups.flatten(1, 2)), expected)


def test_a_convolution_starts_near_the_mean():
    function = compressive().compressor.functions[0]
    groups = torch.randn(2, 3, 2, 8, dtype=torch.float64)
    function.weight.data.zero_()
    function.initialize()
    torch.testing.assert_close(function(groups.flatten(1, 2)), groups.mean(dim=2))


@pytest.mark.parametrize("compression", ["max", "mean", "conv"])
def test_groups_do_not_depend_on_how_the_stream_is_cut(compression):
    """A layer's inputs depend on the cut, but those of the first layer are embeddings."""
    model = compressive(compression=compression, compressed_len=5)
    stream = random_stream(2, 22)
    embedded = model.embedding(stream)
    for segments in (4, 1, [3, 5, 1, 7, 2, 3], [21]):
        _, memory = score_segments(model, stream, segments)
        assert (memory.n_compressed, memory.length, memory.filled) == (5, 10, 10)
        compressed = model.compressor.functions[0](
            embedded[:, 6:16]
        )  # 21 states: 16 fall out, 5 stay
        torch.testing.assert_close(
            memory.states[0], torch.cat([compressed, embedded[:, 16:21]], dim=1)
        )


@pytest.mark.parametrize("pre_norm", [False, True])
def test_the_loss_reaches_the_compressors_parameters_alone(pre_norm):
    model = compressive(pre_norm=pre_norm)
    stream = random_stream(2, 25)
    _, memory = score_segments(model, stream[:, :-4], 4)
    hidden, after = model(stream[:, -5:-1], memory)
    alone = model.losses(hidden, stream[:, -4:])
    nll, memory = model.score(stream[:, -5:-1], stream[:, -4:], memory)
    assert (after.compression_loss > 0, memory.compression_loss) == (True, None)
    of_loss = gradients(model, after.compression_loss)
    of_tokens = gradients(model, alone.mean())
    assert [*of_tokens, *of_loss] == [name for name, _ in model.named_parameters()], (
        "the compressor is the last one"
    )
    assert all(name.startswith("compressor.") for name in of_loss)
    torch.testing.assert_close(gradients(model, nll.mean()), of_tokens | of_loss)
    assert torch.equal(nll, alone)
    assert not memory.states.requires_grad


@pytest.mark.parametrize("pre_norm", [False, True])
def test_the_reconstruction_loss_is_that_of_algorithm_2(pre_norm):
    model = compressive(pre_norm=pre_norm)
    stream = random_stream(2, 13)
    _, memory = score_segments(model, stream[:, :9], 4)
    inputs: list[Tensor] = []
    for layer in model.layers:
        layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    _, after = model(stream[:, 8:12], memory)
    total = 0
    for n, layer in enumerate(model.layers):
        norm = layer.attention_norm if pre_norm else torch.nn.Identity()
        query, key, value = layer.attention.qkv.weight.detach().chunk(3)
        outputs = []
        for m in (
            memory.states[n, :, -4:],
            after.states[n, :, :2],
        ):  # the 4 oldest, and their compression
            q, k, v = (norm(x) @ w.T for x, w in ((inputs[n], query), (m, key), (m, value)))
            q, k, v = (x.unflatten(-1, (2, 3)) for x in (q, k, v))
            scores = torch.einsum("bthe,bkhe->bhtk", q, k) / 3**0.5
            outputs.append(torch.einsum("bhtk,bkhe->bthe", scores.softmax(-1), v))
        total = total + (outputs[0] - outputs[1]).square().mean()
    torch.testing.assert_close(after.compression_loss, total, check_dtype=False)


def test_there_is_no_loss_without_gradients_or_parameters():
    for model, grad in ((compressive(), False), (compressive(compression="max"), True)):
        with torch.set_grad_enabled(grad):
            _, memory = score_segments(model, random_stream(1, 13), 4)
            assert model(random_stream(1, 4), memory)[1].compression_loss is None
