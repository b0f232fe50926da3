"""Encodings after the paper: rotations as in Llama, ALiBi, none at all."""

import math

import pytest
import torch
from torch import Tensor

from tests.model.tiny_model import (
    SIZES,
    assert_close,
    random_stream,
    tiny_model,
)
from txl_lightning.errors import OptionError
from txl_lightning.model import encodings
from txl_lightning.model.encodings import RotaryEncoding, register_encoding, slopes


def llama_rotation(x_HBTE: Tensor, first_position: int) -> Tensor:
    """Rotation of `transformers`' Llama, which pairs the halves of a head, (x_f, x_{f+E/2}), as complex numbers."""
    T, E = x_HBTE.shape[-2:]
    frequencies = 10000.0 ** -(torch.arange(0, E, 2).double() / E)
    angles = torch.outer(
        torch.arange(first_position, first_position + T).double(),
        frequencies,
    )
    rotated = torch.complex(*x_HBTE.chunk(2, -1)) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat(
        [rotated.real, rotated.imag],
        dim=-1,
    )


def by_head(x_BTX: Tensor) -> Tensor:
    return x_BTX.unflatten(-1, (2, 4)).permute(2, 0, 1, 3)


def test_attention_of_a_segment_and_its_memory_is_llamas():
    model = tiny_model(
        encoding="rope",
        d_head=4,
        mem_len=3,
        n_layer=1,
    )
    attention = model.layers[0].attention
    stream = random_stream(2, 8)
    _, memory = model(stream[:, :5])
    hidden = model.embedding(stream[:, 5:])
    states = torch.cat(
        [memory.states[0], hidden],
        dim=1,
    )
    W_q, W_k, W_v = attention.qkv.weight.chunk(3)
    q = llama_rotation(by_head(hidden @ W_q.T), 3)
    k = llama_rotation(by_head(states @ W_k.T), 0)
    scores = q @ k.mT / math.sqrt(4)
    is_future = torch.ones(3, 6, dtype=torch.bool).triu(4)
    probabilities = scores.masked_fill(is_future, -torch.inf).softmax(-1)
    expected = attention.combine_heads(probabilities @ by_head(states @ W_v.T))
    outputs = []
    attention.register_forward_hook(lambda _, inputs, output: outputs.append(output))
    model(stream[:, 5:], memory)
    assert_close(outputs[0], expected)


def test_an_encoding_that_rotates_has_terms_that_allow_it():
    class Own(RotaryEncoding):
        """Another rotation."""

    with pytest.raises(OptionError, match="terms=ab: must be a or ad: angles rotate q and k"):
        register_encoding("own_rotation", "ab")(Own)
    assert "own_rotation" not in encodings.ENCODINGS


OF_8 = [2.0**-h for h in range(1, 9)]
PUBLISHED = {  # `get_slopes` of the ALiBi repository
    8: OF_8,
    16: [2 ** (-h / 2) for h in range(1, 17)],
    6: [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8],
    12: [*OF_8, 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5],
    1: [1 / 256],
}


@pytest.mark.parametrize("n_head", PUBLISHED)
def test_slopes_are_the_published_ones(n_head):
    expected = torch.tensor(PUBLISHED[n_head], dtype=torch.float64)
    torch.testing.assert_close(
        slopes(n_head, expected),
        expected,
        rtol=1e-15,
        atol=0,
    )


def test_alibi_adds_a_slope_times_the_distance():
    """As attention adds a bias of distances, divided by sqrt(E): see tests/model/test_attention.py."""
    model = tiny_model(encoding="alibi", n_head=6)
    positions = model.encoding.positions(
        5,
        3,
        torch.zeros(1).double(),
    )
    bias_HS = positions[-1].bias_HS / SIZES["d_head"] ** 0.5
    slopes_H = torch.tensor(PUBLISHED[6]).double()
    assert_close(
        bias_HS,
        -slopes_H.outer(torch.tensor([3, 3, 3, 2, 1, 0]).double()),
    )
