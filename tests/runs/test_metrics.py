"""Token-weighted loss and its units; needed products counted in small models, and the peaks of devices."""

import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from txl_lightning import TransformerXL, TransformerXLConfig
from txl_lightning.model.baselines import RecurrentConfig, RecurrentLanguageModel
from txl_lightning.runs.metrics import (
    TokenLoss,
    errors_by_unit,
    loss_metrics,
    peak_flops,
    peak_memory,
    shown_units,
    training_flops,
)

SIZES = {"vocab_size": 50, "n_layer": 3, "d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 32, "dropout": 0.0}
B, T = 4, 8


def test_the_mean_is_weighted_by_tokens() -> None:
    loss = TokenLoss()
    loss.update(torch.full((2, 10), 1.0))
    loss.update(torch.full((2, 1), 4.0))
    assert float(loss.compute()[0]) == pytest.approx((20 * 1 + 2 * 4) / 22)


def test_it_counts_beyond_float32() -> None:
    loss = TokenLoss()
    loss.update(torch.tensor([2.0**30]), 0)
    loss.update(torch.full((1, 3), 1.0), torch.tensor(2.0**24))
    loss.update(torch.full((1, 1), 1.0), torch.tensor(1.0))
    assert (float(loss.nll_sum), loss.tokens, float(loss.n_bytes)) == (2.0**30 + 4, 5, 2.0**24 + 1)
    loss.reset()
    assert (float(loss.nll_sum), loss.nll_sum.dtype) == (0.0, torch.float64)


def test_units() -> None:
    assert loss_metrics(math.log(2), "byte") == {"nll": math.log(2), "bpc": 1.0}
    assert loss_metrics(math.log(8), "char")["bpc"] == pytest.approx(3.0)
    assert loss_metrics(math.log(20), "word")["ppl"] == pytest.approx(20.0)
    assert loss_metrics(1e6, "word")["ppl"] == math.inf
    assert loss_metrics(math.log(8), "bpe", 1.5) == {"nll": math.log(8), "ppl": pytest.approx(8.0), "bpb": 2.0}


def test_units_of_the_error() -> None:
    assert errors_by_unit(None, 1.0, "byte") == {"nll": None, "bpc": None}
    assert errors_by_unit(0.1, 2.0, "char")["bpc"] == pytest.approx(0.1 / math.log(2))
    assert errors_by_unit(0.1, 2.0, "word")["ppl"] == pytest.approx(0.1 * math.exp(2))


def test_bits_per_byte_are_exact_or_left_out() -> None:
    loss = TokenLoss()
    loss.update(torch.full((2, 10), math.log(2)), 60)
    loss.update(torch.full((2, 10), math.log(2)), torch.tensor(100.0))
    nll, tokens, n_bytes = loss.compute()
    assert loss_metrics(float(nll), "char", float(n_bytes / tokens))["bpb"] == pytest.approx(40 / 160)
    loss.update(torch.full((2, 1), 4.0))
    assert "bpb" not in loss_metrics(1.0, "char", float(loss.compute()[2]))


def test_bits_per_byte_are_shown_where_they_differ() -> None:
    assert shown_units(loss_metrics(1.0, "byte", 1.0)) == ["bpc"]
    assert shown_units(loss_metrics(1.0, "char", 1.5)) == ["bpc", "bpb"]
    assert shown_units({"val/ppl": 2.0, "val/bpb": 1.0}, "val/") == ["ppl", "bpb"]


def counted(model: TransformerXL | RecurrentLanguageModel) -> int:
    """Products of a step as torch counts them, hidden keys included; the memory is full."""
    tokens = torch.randint(50, (B, T + 1))
    with FlopCounterMode(display=False) as counter:
        model.score(tokens[:, :-1], tokens[:, 1:], model.start_memory(B))[0].mean().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("mem_len", [0, 8, 24])
@pytest.mark.parametrize(
    "options",
    [
        *({}, {"terms": "ab"}, {"terms": "ac"}, {"encoding": "absolute"}, {"d_embed": 6}),
    ],
)
def test_products_are_those_that_torch_counts_without_hidden_keys(mem_len: int, options: dict[str, object]) -> None:
    model = TransformerXL(TransformerXLConfig(**{**SIZES, "mem_len": mem_len, "memory_start": "zeros", **options}))
    terms = model.config.active_terms
    n_products, n_hidden = 1 + ("a" in terms) + ("b" in terms), (T - 1) / 2
    hidden = 6 * 3 * B * T * n_products * 16 * n_hidden
    beyond = 6 * 3 * B * T * 16 if "b" in terms else 0  # the distance K, which belongs to no key
    distances = 4 * 3 * 16 * 16 if "b" in terms else 0
    expected = training_flops(model, B, T) + hidden + beyond + distances
    assert counted(model) == pytest.approx(expected, rel=1e-6)


def test_a_recurrent_model_needs_its_matrices_and_the_softmax() -> None:
    model = RecurrentLanguageModel(RecurrentConfig(vocab_size=50, n_layer=2, d_model=16, cell="qrnn"))
    assert training_flops(model, B, T) == 6 * B * T * (2 * 32 * 48 + 50 * 16)


def test_the_head_of_an_adaptive_softmax_counts_alone() -> None:
    sizes = {**SIZES, "mem_len": 0, "n_layer": 1}
    whole = training_flops(TransformerXL(TransformerXLConfig(**sizes)), B, T)
    cut = training_flops(TransformerXL(TransformerXLConfig(**sizes, cutoffs=(10, 20))), B, T)
    assert whole - cut == 6 * B * T * 16 * (50 - 12)


@pytest.mark.parametrize(
    ("name", "precision", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16-mixed", 989e12),
        ("NVIDIA A100-SXM4-80GB", "64-true", None),
        ("NVIDIA GeForce RTX 3090", "bf16-mixed", None),
    ],
)
def test_the_peak_is_known_by_name_and_precision(
    name: str, precision: str, peak: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert peak_flops(torch.device("cuda"), precision) == peak
    assert peak_flops(torch.device("cpu"), precision) is None


def test_peak_memory_of_a_cpu_is_that_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 50e6 < peak_memory(torch.device("cpu")) < 1e12
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 123)
    assert peak_memory(torch.device("cuda")) == 123
