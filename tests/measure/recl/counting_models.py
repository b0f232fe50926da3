"""Models whose use of context is known in closed form."""

import torch
from torch import Tensor

SYMBOLS = 256


class Counting:
    """P(x) = (occurrences of x in the context + 1) / (tokens of context + 256): the order does not matter."""

    def score(self, tokens_BT: Tensor, targets_BT: Tensor, state: object = None) -> tuple[Tensor, None]:
        before = torch.nn.functional.one_hot(tokens_BT.long(), SYMBOLS).cumsum(1)[:, -targets_BT.shape[1] :]
        counts_BT = before.gather(2, targets_BT[..., None].long())[..., 0]
        read_T = torch.arange(tokens_BT.shape[1] - targets_BT.shape[1], tokens_BT.shape[1]) + 1
        return -((counts_BT + 1) / (read_T + SYMBOLS).double()).log(), None


class Lagging:
    """Nine tenths of the probability for the token `lag` before; as much for each other one, or all without it."""

    def __init__(self, lag: int) -> None:
        self.lag = lag

    def score(self, tokens_BT: Tensor, targets_BT: Tensor, state: object = None) -> tuple[Tensor, None]:
        p_BT = torch.full(tokens_BT.shape, 1 / SYMBOLS, dtype=torch.float64)
        last = tokens_BT.shape[1] - self.lag + 1
        own_BT = tokens_BT[:, -targets_BT.shape[1] :]
        assert own_BT.shape == targets_BT.shape
        if last > 0:
            of_all = torch.cat([tokens_BT[:, 1:], targets_BT[:, -1:]], dim=1)
            p_BT[:, self.lag - 1 :] = torch.where(of_all[:, self.lag - 1 :] == tokens_BT[:, :last], 0.9, 0.1 / 255)
        return -p_BT[:, -targets_BT.shape[1] :].log(), None


def make_counting() -> Counting:
    """For `py:`."""
    return Counting()


def make_lagging() -> Lagging:
    """For `py:`."""
    return Lagging(6)
