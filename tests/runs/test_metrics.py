"""Token-weighted loss and its units; memory."""

import math

import pytest
import torch

from txl_lightning.runs.metrics import TokenLoss, errors_by_unit, loss_metrics, shown_units


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
