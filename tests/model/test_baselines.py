"""The recurrent baselines: layers against plain loops; segments, losses, dropout, states as values, options."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from tests.model.tiny_model import assert_close, random_stream, score_segments, tiny_model
from txl_lightning.model.baselines import (
    LSTMLayer,
    QRNNLayer,
    RecurrentConfig,
    RecurrentLanguageModel,
    RecurrentState,
    forget_mult,
)

both = pytest.mark.parametrize("cell", ["lstm", "qrnn"])
ADAPTIVE = [
    {"cutoffs": (4, 8), "div_val": 2},
    {"d_embed": 4, "cutoffs": (4, 8), "tie_projections": "none"},
]
ADAPTIVE += [{"d_embed": 6, "cutoffs": (4,), "div_val": 2, "tie_projections": "all"}]


def random_state(model: RecurrentLanguageModel, n_streams: int) -> RecurrentState:
    """A state that the model did not return, and that requires gradients."""
    generator = torch.Generator().manual_seed(2)
    shape = (model.config.n_layer, n_streams, model.config.d_model)
    previous, cells = torch.randn(
        2, *shape, generator=generator, dtype=torch.float64
    ).requires_grad_()
    return RecurrentState(previous, cells)


SEGMENTS = st.lists(st.integers(1, 9), min_size=2, max_size=6)


@settings(max_examples=30)
@given(st.sampled_from(["lstm", "qrnn"]), st.sampled_from([{}, *ADAPTIVE]), SEGMENTS)
def test_segments_do_not_matter(cell, adaptive, segments):
    model = tiny_model(cell=cell, **adaptive)
    stream = random_stream(2, sum(segments) + 1)
    (whole, after_whole), (cut, after_cut) = (
        score_segments(model, stream, x) for x in ([sum(segments)], segments)
    )
    assert_close(cut, whole)
    assert_close(after_cut.state_dict(), after_whole.state_dict())


def test_the_layers_are_those_of_torchs_lstm():
    model = tiny_model(cell="lstm")
    stream = random_stream(2, 7)
    lstm = nn.LSTM(8, 8, num_layers=3, batch_first=True, dtype=torch.float64)
    for n, layer in enumerate(model.layers):
        for name, weight in layer.lstm.named_parameters():
            getattr(lstm, name.replace("l0", f"l{n}")).data.copy_(weight)
    state = random_state(model, 2)
    outputs, (h, c) = lstm(model.embedding(stream), (state.previous, state.cells))
    hidden, new = model(stream, state)
    assert_close((hidden, new.previous, new.cells), (outputs, h, c))


@both
def test_no_gradient_enters_or_leaves_a_state(cell):
    model = tiny_model(cell=cell)
    stream = random_stream(2, 6)
    state = random_state(model, 2)
    nll, new = model.score(stream[:, :-1], stream[:, 1:], state)
    assert not any(values.requires_grad for values in (new.previous, new.cells))
    assert torch.autograd.grad(nll.sum(), (state.previous, state.cells), allow_unused=True) == (
        None,
        None,
    )


def test_parameters_and_their_start():
    torch.manual_seed(0)
    for cell, parameters, bound in (
        ("lstm", 8 * 64**2 + 8 * 64, 64**-0.5),
        ("qrnn", 6 * 64**2 + 3 * 64, 128**-0.5),
    ):
        model = RecurrentLanguageModel(RecurrentConfig(9, cell=cell, n_layer=1, d_model=64))
        assert sum(weight.numel() for weight in model.layers.parameters()) == parameters
        for weight in model.layers.parameters():
            assert 0.9 * bound < weight.abs().max() <= bound


def loop(forget: Tensor, candidate: Tensor, cell: Tensor) -> Tensor:
    """Pooling, one token after the other."""
    cells = []
    for f, z in zip(forget.unbind(1), candidate.unbind(1), strict=True):
        cell = f * cell + (1 - f) * z
        cells.append(cell)
    return torch.stack(cells, dim=1)


@pytest.mark.parametrize("T", [*range(1, 18), 31, 32, 33, 100, 257])
def test_pooling_over_time_equals_a_loop(T):
    """With some gates of exactly or almost 0 or 1."""
    gates, candidates, cells = (
        torch.randn(2, *shape, dtype=torch.float64) for shape in ((T, 3), (T, 3), (3,))
    )
    forget = F.hardtanh(1.04 * (6 * gates).sigmoid() - 0.02, 0, 1)
    inputs = [x.requires_grad_() for x in (forget, candidates, cells)]
    fast = forget_mult(*inputs)
    slow = loop(*inputs)
    assert_close(fast, slow, 1e-12)
    weights = torch.randn_like(slow)
    ours, theirs = (torch.autograd.grad(y, inputs, weights) for y in (fast, slow))
    assert_close(ours, theirs, 1e-12)


def test_qrnn_is_the_papers_formula_token_by_token():
    layer = QRNNLayer(4).double()
    x, previous, cell = (
        torch.randn(shape, dtype=torch.float64) for shape in ((2, 6, 4), (2, 4), (2, 4))
    )
    outputs, last_x, last_c = layer(x, previous, cell)
    now = layer.gates.weight[:, :4]
    before = layer.gates.weight[:, 4:]
    for t in range(6):
        z, f, o = (x[:, t] @ now.T + previous @ before.T + layer.gates.bias).chunk(3, dim=1)
        cell = f.sigmoid() * cell + (1 - f.sigmoid()) * z.tanh()
        previous = x[:, t]
        assert_close(outputs[:, t], o.sigmoid() * cell)
    assert_close(last_c, cell)
    assert torch.equal(last_x, x[:, -1])


@pytest.mark.parametrize(
    ("layer", "weight"), [(LSTMLayer, "lstm.weight_hh_l0"), (QRNNLayer, "gates.weight")]
)
def test_weight_dropout_is_one_mask_for_a_segment(layer, weight):
    dropping = layer(8, 0.5).double()
    plain = layer(8).double()
    plain.load_state_dict(dropping.state_dict())
    x = torch.randn(1, 9, 8, dtype=torch.float64)
    start = torch.randn(1, 8, dtype=torch.float64)
    torch.manual_seed(3)
    dropped, *_ = dropping(x, start, start)
    torch.manual_seed(3)
    mask = dropping.weight_dropout(torch.ones_like(plain.get_parameter(weight)))
    assert sorted(mask.unique().tolist()) == [0.0, 2.0]
    with torch.no_grad():
        plain.get_parameter(weight).mul_(mask)
    assert_close(dropped, plain(x, start, start)[0])


@pytest.mark.parametrize("weight_dropout", [0.0, 0.5])
def test_under_autocast_an_lstm_is_in_float32(weight_dropout):
    layer = LSTMLayer(8, weight_dropout)
    x = torch.randn(2, 5, 8)
    start = torch.zeros(2, 8)

    def outputs(autocast: bool) -> Tensor:
        torch.manual_seed(3)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return layer(x, start, start)[0]

    assert torch.equal(outputs(True), outputs(False))
