"""The recurrent baselines: layers against plain loops; segments, losses, dropout, states as values, options."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from tests.model.tiny_model import (
    assert_close,
    assert_same_gradients,
    random_stream,
    score_segments,
    tiny_model,
)
from txl_lightning.model.baselines import (
    LSTMLayer,
    QRNNLayer,
    RecurrentConfig,
    RecurrentLanguageModel,
    RecurrentState,
    forget_mult,
)

ADAPTIVE = [
    {"cutoffs": (4, 8), "div_val": 2},
    {"d_embed": 4, "cutoffs": (4, 8), "tie_projections": "none"},
    {"d_embed": 6, "cutoffs": (4,), "div_val": 2, "tie_projections": "all"},
]


def random_state(model: RecurrentLanguageModel, n_streams: int) -> RecurrentState:
    """A state that the model did not return, and that requires gradients."""
    shape = (model.config.n_layer, n_streams, model.config.d_model)
    return RecurrentState(random(*shape), random(*shape))


SEGMENTS = st.lists(
    st.integers(1, 9),
    min_size=2,
    max_size=6,
)


@settings(max_examples=30)
@given(
    st.sampled_from(["lstm", "qrnn"]),
    st.sampled_from([{}, *ADAPTIVE]),
    SEGMENTS,
)
def test_segments_do_not_matter(cell, adaptive, segments):
    model = tiny_model(cell=cell, **adaptive)
    stream = random_stream(2, sum(segments) + 1)
    whole, after_whole = score_segments(
        model,
        stream,
        [sum(segments)],
    )
    cut, after_cut = score_segments(model, stream, segments)
    assert_close(cut, whole)
    assert_close(after_cut.state_dict(), after_whole.state_dict())


def test_the_layers_are_those_of_torchs_lstm():
    model = tiny_model(cell="lstm")
    lstm = nn.LSTM(
        8,
        8,
        num_layers=3,
        batch_first=True,
        dtype=torch.float64,
    )
    for n, layer in enumerate(model.layers):
        for name, weight in layer.lstm.named_parameters():
            lstm.get_parameter(name.replace("l0", f"l{n}")).data = weight.data
    stream = random_stream(2, 7)
    state = random_state(model, 2)
    outputs, (h, c) = lstm(
        model.embedding(stream),
        (state.previous, state.cells),
    )
    hidden, after = model(stream, state)
    assert_close(
        (hidden, after.previous, after.cells),
        (outputs, h, c),
    )


@pytest.mark.parametrize("cell", ["lstm", "qrnn"])
def test_no_gradient_enters_or_leaves_a_state(cell):
    model = tiny_model(cell=cell)
    state = random_state(model, 2)
    nll, after = score_segments(
        model,
        random_stream(2, 6),
        5,
        state,
    )
    nll.sum().backward()
    assert not after.previous.requires_grad
    assert not after.cells.requires_grad
    assert state.previous.grad is None
    assert state.cells.grad is None


@pytest.mark.parametrize(
    ("cell", "n_parameters", "bound"),
    [
        ("lstm", 8 * 64**2 + 8 * 64, 64**-0.5),
        ("qrnn", 6 * 64**2 + 3 * 64, 128**-0.5),
    ],
)
def test_parameters_and_their_start(cell, n_parameters, bound):
    torch.manual_seed(0)
    model = RecurrentLanguageModel(RecurrentConfig(9, cell=cell, n_layer=1, d_model=64))
    weights = list(model.layers.parameters())
    assert sum(weight.numel() for weight in weights) == n_parameters
    for weight in weights:
        assert 0.9 * bound < weight.abs().max() <= bound


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize(
    "T",
    [*range(1, 18), 31, 32, 33, 100, 257],
)
def test_pooling_over_time_equals_a_loop(T):
    """With some gates of exactly or almost 0 or 1."""
    forget = F.hardtanh(
        1.04 * (6 * random(2, T, 3)).sigmoid() - 0.02,
        0,
        1,
    )
    inputs = [
        forget,
        random(2, T, 3),
        random(2, 3),
    ]
    cells = []
    cell = inputs[2]
    for f, z in zip(forget.unbind(1), inputs[1].unbind(1), strict=True):
        cell = f * cell + (1 - f) * z
        cells.append(cell)
    assert_same_gradients(
        forget_mult(*inputs),
        torch.stack(cells, dim=1),
        inputs,
        1e-12,
    )


def test_qrnn_is_the_papers_formula_token_by_token():
    layer = QRNNLayer(4).double()
    x = random(2, 6, 4)
    previous = random(2, 4)
    cell = random(2, 4)
    outputs, last_x, last_c = layer(x, previous, cell)
    W, V = layer.gates.weight.split(
        4,
        dim=1,
    )
    for t in range(6):
        gates = x[:, t] @ W.T + previous @ V.T + layer.gates.bias
        z, f, o = gates.chunk(3, dim=1)
        cell = f.sigmoid() * cell + (1 - f.sigmoid()) * z.tanh()
        previous = x[:, t]
        assert_close(
            outputs[:, t],
            o.sigmoid() * cell,
        )
    assert_close(last_c, cell)
    assert torch.equal(last_x, previous)


@pytest.mark.parametrize(
    ("layer", "name"), [(LSTMLayer, "lstm.weight_hh_l0"), (QRNNLayer, "gates.weight")]
)
def test_weight_dropout_is_one_mask_for_a_segment(layer, name):
    dropping = layer(8, 0.5).double()
    plain = layer(8).double()
    plain.load_state_dict(dropping.state_dict())
    x = random(1, 9, 8)
    start = random(1, 8)
    torch.manual_seed(3)
    dropped = dropping(x, start, start)
    torch.manual_seed(3)
    weight = plain.get_parameter(name)
    mask = dropping.weight_dropout(torch.ones_like(weight))
    assert mask.unique().tolist() == [0.0, 2.0]
    weight.data *= mask
    assert_close(dropped, plain(x, start, start))


@pytest.mark.parametrize("weight_dropout", [0.0, 0.5])
def test_under_autocast_an_lstm_is_in_float32(weight_dropout):
    layer = LSTMLayer(8, weight_dropout)
    x = torch.randn(2, 5, 8)
    start = torch.zeros(2, 8)

    def outputs(autocast):
        torch.manual_seed(3)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return layer(x, start, start)[0]

    assert torch.equal(outputs(True), outputs(False))
