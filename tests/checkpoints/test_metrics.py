"""Token-weighted loss and its units."""

import torch

from txl_lightning.evaluation.units import loss_metrics, loss_unit, shown_units, unit_name
from txl_lightning.training.module import TokenLoss


def test_it_counts_beyond_float32() -> None:
    loss = TokenLoss()
    loss.update(torch.tensor([2.0**30]), torch.tensor(0.0))
    loss.update(torch.full((1, 3), 1.0), torch.tensor(2.0**24))
    loss.update(torch.full((1, 1), 1.0), torch.tensor(1.0))
    assert loss.sums.tolist() == [2.0**30 + 4, 2.0**24 + 1, 5]


def test_bits_are_called_after_what_they_are_of() -> None:
    assert shown_units(loss_metrics(1.0, "byte", 1.0)) == [loss_unit("byte")] == ["bpb"]
    words = ["bits per byte", "bits per character", "perplexity"]
    assert [unit_name(level) for level in ("byte", "char", "ids")] == words
    assert shown_units(loss_metrics(1.0, "char", 1.5)) == ["bpc", "bpb"]
    assert shown_units({"val/ppl": 2.0, "val/bpb": 1.0}, "val/") == ["ppl", "bpb"]
