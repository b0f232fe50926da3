"""Losses, initialization and dropout of the model."""

import pytest
import torch
from torch import Tensor

from tests.model.tiny_model import SIZES, assert_close, random_stream, tiny_model
from txl_lightning import TransformerXL, TransformerXLConfig
from txl_lightning.model.layers import Dropout


def test_initialization_is_the_papers():
    model = TransformerXL(
        TransformerXLConfig(
            vocab_size=300,
            n_layer=2,
            d_model=128,
            n_head=4,
            d_inner=256,
        )
    )
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        else:
            mean = 1.0 if "norm" in name else 0.0
            error = 5 * 0.02 / parameter.numel() ** 0.5
            assert parameter.mean().item() == pytest.approx(mean, abs=error), name
            assert parameter.std().item() == pytest.approx(0.02, abs=error), name


def dropped(p: float, n_elements: int = 1_000_003) -> Tensor:
    """Ones after dropout; the number of elements is no multiple of four."""
    torch.manual_seed(0)
    return Dropout(p)(torch.ones(n_elements, dtype=torch.float64))


def test_dropout_decides_neighbours_independently():
    kept = dropped(0.5)[:1_000_000].ne(0).double().view(-1, 4)
    error = 5 * 0.5 / len(kept) ** 0.5
    assert_close(
        kept.mean(0),
        torch.full((4,), 0.5).double(),
        error,
    )
    assert_close(
        kept.T.cov(),
        0.25 * torch.eye(4).double(),
        error,
    )


@pytest.mark.parametrize(
    ("p", "level"),
    [(1e-9, 1), (0.1, 6554), (0.9999999, 65535)],
)
def test_dropout_scales_by_the_rate_it_really_has(p, level):
    scale = 65536 / (65536 - level)
    output = dropped(p)
    assert set(output.unique().tolist()) == {0.0, scale}
    expected = len(output) * level / 65536
    assert output.eq(0).sum().item() == pytest.approx(expected, abs=5 * (expected / scale) ** 0.5)


def test_dropout_is_at_the_papers_sites():
    B, T, M, N = 2, 3, 4, 2
    D, H, d_inner = (SIZES[name] for name in ("d_model", "n_head", "d_inner"))
    model = tiny_model(
        dropout=0.2,
        attention_dropout=0.3,
        mem_len=M,
        n_layer=N,
    )
    sites = []
    for module in model.modules():
        if isinstance(module, Dropout):
            module.register_forward_hook(lambda site, _, x: sites.append((site.p, tuple(x.shape))))
    model(
        random_stream(B, T),
        model.start_memory(B, static=True),
    )
    states = (0.2, (B, T, D))
    layer = [
        (0.3, (H, B, T, M + T)),
        states,
        (0.2, (B, T, d_inner)),
        states,
    ]
    assert sites == [states, (0.2, (M + T + 1, D)), *(N * layer), states]
