"""Layers of the recurrent baselines against plain loops."""

from typing import Any

import pytest
import torch
from torch import Tensor

from txl_lightning.model.baselines import recurrent_layers
from txl_lightning.model.baselines.recurrent_layers import LSTMLayer, QRNNLayer, forget_mult, lstm_with_weights

LSTM_PROBE = recurrent_layers.has_bfloat16_lstm  # calls a private function of torch
EXACT = {"rtol": 0, "atol": 1e-9}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def loop(forget: Tensor, candidate: Tensor, cell: Tensor) -> Tensor:
    """Pooling, one token after the other."""
    cells = []
    for f, z in zip(forget.unbind(1), candidate.unbind(1), strict=True):
        cell = f * cell + (1 - f) * z
        cells.append(cell)
    return torch.stack(cells, dim=1)


def pooling_inputs(T: int, B: int = 2, D: int = 3, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Gates, a few of them exactly or almost 0 or 1; candidates; first cells."""
    generator = torch.Generator().manual_seed(T)
    forget = (6 * torch.randn(B, T, D, generator=generator, dtype=dtype)).sigmoid()
    forget[forget < 0.02] = 0.0
    forget[forget > 0.98] = 1.0
    candidate = torch.randn(B, T, D, generator=generator, dtype=dtype)
    return [x.requires_grad_() for x in (forget, candidate, torch.randn(B, D, generator=generator, dtype=dtype))]


@pytest.mark.parametrize("T", [*range(1, 18), 31, 32, 33, 100, 257])
def test_pooling_over_time_equals_a_loop(T):
    inputs = pooling_inputs(T)
    fast, slow = forget_mult(*inputs), loop(*inputs)
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-12)
    weights = torch.randn_like(slow)
    fast_gradients, slow_gradients = (torch.autograd.grad((y * weights).sum(), inputs) for y in (fast, slow))
    for ours, theirs in zip(fast_gradients, slow_gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_pooling_has_a_second_derivative():
    inputs = pooling_inputs(5)
    assert torch.autograd.gradcheck(forget_mult, inputs)
    assert torch.autograd.gradgradcheck(forget_mult, inputs)


def test_pooling_in_single_precision_survives_long_segments_of_extreme_gates():
    forget, candidate, cell = pooling_inputs(3000, dtype=torch.float32)
    for bias in (-30.0, 0.0, 30.0):
        gates = (bias + 30 * torch.randn_like(candidate)).sigmoid()
        result = forget_mult(gates, candidate, cell)
        torch.testing.assert_close(result, loop(gates, candidate, cell), rtol=0, atol=1e-5)
    assert forget_mult(torch.ones_like(forget), candidate, cell)[:, -1].equal(cell)


def test_qrnn_is_the_papers_formula_token_by_token():
    layer = QRNNLayer(4).double()
    x, previous, cell = (torch.randn(shape, dtype=torch.float64) for shape in ((2, 6, 4), (2, 4), (2, 4)))
    outputs, last_x, last_c = layer(x, previous, cell)
    now, before = layer.gates.weight[:, :4], layer.gates.weight[:, 4:]
    for t in range(6):
        z, f, o = (x[:, t] @ now.T + previous @ before.T + layer.gates.bias).chunk(3, dim=1)
        cell = f.sigmoid() * cell + (1 - f.sigmoid()) * z.tanh()
        previous = x[:, t]
        torch.testing.assert_close(outputs[:, t], o.sigmoid() * cell, **EXACT)
    torch.testing.assert_close(last_c, cell, **EXACT)
    assert torch.equal(last_x, x[:, -1])


@pytest.mark.parametrize(("layer", "weight"), [(LSTMLayer, "lstm.weight_hh_l0"), (QRNNLayer, "gates.weight")])
def test_weight_dropout_is_one_mask_for_a_segment(layer, weight):
    dropping, plain = layer(8, 0.5).double(), layer(8).double()
    plain.load_state_dict(dropping.state_dict())
    x, start = torch.randn(1, 9, 8, dtype=torch.float64), torch.randn(1, 8, dtype=torch.float64)
    torch.manual_seed(3)
    dropped, *_ = dropping(x, start, start)
    torch.manual_seed(3)
    mask = dropping.weight_dropout(torch.ones_like(plain.get_parameter(weight)))
    assert sorted(mask.unique().tolist()) == [0.0, 2.0]
    with torch.no_grad():
        plain.get_parameter(weight).mul_(mask)
    torch.testing.assert_close(dropped, plain(x, start, start)[0], **EXACT)


@pytest.mark.parametrize("weight_dropout", [0.0, 0.5])
@pytest.mark.parametrize("supported", [False, True])
def test_under_autocast_an_lstm_is_in_bfloat16_only_where_the_cpu_has_one(
    supported: bool, weight_dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.dtype | None] = []
    original = recurrent_layers.lstm_with_weights if weight_dropout else torch.nn.LSTM.forward

    def noting(*arguments: Any) -> Any:
        seen.append(torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None)
        with torch.autocast("cpu", enabled=False):  # the CPU of this test may have none
            return original(*arguments)

    monkeypatch.setattr(recurrent_layers, "has_bfloat16_lstm", lambda: supported)
    monkeypatch.setattr(recurrent_layers, "lstm_with_weights", noting)
    monkeypatch.setattr(torch.nn.LSTM, "forward", noting)
    layer, x, start = LSTMLayer(8, weight_dropout), torch.randn(2, 5, 8), torch.zeros(2, 8)
    outputs = []
    for autocast in (True, False):
        torch.manual_seed(3)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            outputs.append(layer(x, start, start)[0])
    assert seen == [torch.bfloat16 if supported else None, None]
    assert torch.equal(*outputs)
    assert isinstance(LSTM_PROBE(), bool)


def test_torchs_undocumented_lstm_is_its_module():
    """Fails when torch changes `torch.lstm`."""
    x, h, c = torch.randn(2, 5, 4), torch.randn(1, 2, 3), torch.randn(1, 2, 3)
    module = torch.nn.LSTM(4, 3, batch_first=True)
    expected, (last_h, last_c) = module(x, (h, c))
    for ours, theirs in zip(
        lstm_with_weights(x, (h, c), list(module.parameters())), (expected, last_h, last_c), strict=True
    ):
        torch.testing.assert_close(ours, theirs)
