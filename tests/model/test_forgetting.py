"""Gates that forget (FoX): their start, their limits and their precision; test_attention.py has the formula."""

import pytest
import torch

from tests.model.tiny_model import random_stream, score_segments, tiny_model
from tests.training.small_run import tiny_config
from txl_lightning import TransformerXL, TransformerXLConfig
from txl_lightning.model.attention import forgetting
from txl_lightning.runs.models import architecture


@pytest.mark.parametrize(("given", "longest"), [({"forget_len": 64}, 64), ({"mem_len": 27}, 27)])
def test_heads_start_to_forget_over_one_token_to_the_longest_in_geometric_steps(given, longest):
    model = TransformerXL(TransformerXLConfig(9, n_layer=2, d_model=8, n_head=4, d_head=2, forget_gate=True, **given))
    for layer in model.layers:
        lengths = -1 / layer.attention.forget.bias.double().sigmoid().log()
        expected = torch.tensor([1.0, longest ** (1 / 3), longest ** (2 / 3), longest], dtype=torch.float64)
        torch.testing.assert_close(lengths, expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    ("overrides", "longest"),
    [
        (("memory.mem_len=8",), 16),
        (("memory=off",), 8),
        (("memory.mem_len=8", "model.same_length=true"), 8),
        (("model.forget_len=0",), 0),
    ],
)
def test_the_longest_is_the_most_keys_of_a_query_in_training(tmp_path, overrides, longest):
    sizes = architecture(tiny_config(tmp_path, "model.forget_gate=true", *overrides), 9)
    assert sizes.forget_len == longest
    biases = [layer.attention.forget.bias for layer in TransformerXL(sizes).layers]
    assert any(bias.any() for bias in biases) == (longest > 0)


def test_gates_that_are_open_forget_nothing_and_closed_ones_all_but_the_token_itself():
    stream = random_stream(2, 13)
    expected = score_segments(tiny_model(), stream, 4)[0]
    model = tiny_model(forget_gate=True)
    model.load_state_dict(tiny_model().state_dict(), strict=False)
    for layer in model.layers:
        layer.attention.forget.weight.data.zero_()
        layer.attention.forget.bias.data.fill_(60.0)
    torch.testing.assert_close(score_segments(model, stream, 4)[0], expected, rtol=0, atol=1e-12)
    for layer in model.layers:
        layer.attention.forget.bias.data.fill_(-1e4)
    alone = torch.stack([model(stream[:, i : i + 1])[0][:, 0] for i in range(5)], dim=1)
    torch.testing.assert_close(model(stream[:, :5])[0], alone, rtol=0, atol=1e-12)


def test_near_keys_keep_their_precision_after_long_sums():
    """Four thousand gates of 1/2: neighbours differ by log 2, at any distance and with 16-bit weights."""
    bias = forgetting(torch.zeros(1, 1, 4001, dtype=torch.bfloat16))
    assert bias.dtype == torch.float32
    differences = bias.double().diff(dim=-1)
    torch.testing.assert_close(differences[..., -64:], torch.full((1, 1, 64), 2.0).double().log(), rtol=0, atol=1e-5)
    torch.testing.assert_close(differences[..., :64], torch.full((1, 1, 64), 2.0).double().log(), rtol=0, atol=1e-3)


@pytest.mark.parametrize("grad", [True, False])
def test_a_strong_gate_is_exact_in_bfloat16(grad):
    """The bias of early keys reaches -300, where bfloat16 has steps of 2."""
    model = tiny_model(encoding="none", forget_gate=True, n_layer=1, mem_len=0).float()
    model.layers[0].attention.forget.bias.data.fill_(-1.0)
    stream = random_stream(2, 200)
    with torch.set_grad_enabled(grad):
        expected = model.score(stream[:, :-1], stream[:, 1:])[0]
        with torch.autocast("cpu", torch.bfloat16):
            found = model.score(stream[:, :-1], stream[:, 1:])[0]
    assert (found - expected).abs().mean() < 0.02 * expected.mean()
