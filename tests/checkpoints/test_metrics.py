"""Token-weighted loss and its units."""

import torch

from txl_lightning.training.module import TokenLoss


def test_it_counts_beyond_float32() -> None:
    loss = TokenLoss()
    loss.update(torch.tensor([2.0**30]), torch.tensor(0.0))
    loss.update(torch.full((1, 3), 1.0), torch.tensor(2.0**24))
    loss.update(torch.full((1, 1), 1.0), torch.tensor(1.0))
    assert loss.sums.tolist() == [2.0**30 + 4, 2.0**24 + 1, 5]
