"""Functions that compress `rate` neighbouring states into one (Rae et al. 2019, §3.1)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from txl_lightning.model.config import COMPRESSIONS


class CompressionFunction(nn.Module):
    """Base class: from G·rate states to G compressed ones.

    Args:
        d_model: D.
        rate: states that become one.

    Attributes:
        lookahead: number of states after the G·rate ones that `forward` reads as well.
        needs_usage: whether `forward` reads the attention that the states received.
    """

    lookahead = 0
    needs_usage = False

    def __init__(self, d_model: int, rate: int) -> None:
        super().__init__()
        self.rate = rate

    def initialize(self) -> None:
        """Set the parameters, drawn as all others are, so that compression starts near a mean."""

    def groups(self, states_BSD: Tensor) -> Float[Tensor, "B G rate D"]:
        """Divide the states into groups of `rate` neighbours."""
        return states_BSD.unflatten(1, (-1, self.rate))


class MaxPooling(CompressionFunction):
    """Largest value of every group, for each of the D numbers."""

    def forward(self, states_BSD: Tensor, usage_BS: Tensor | None = None) -> Float[Tensor, "B G D"]:
        """Return max_k x_{g·rate + k}."""
        return self.groups(states_BSD).amax(dim=2)


class MeanPooling(CompressionFunction):
    """Mean of every group."""

    def forward(self, states_BSD: Tensor, usage_BS: Tensor | None = None) -> Float[Tensor, "B G D"]:
        """Return (Σ_k x_{g·rate + k}) / rate."""
        return self.groups(states_BSD).mean(dim=2)


class Convolution(CompressionFunction):
    """Convolution over time with kernel and stride `rate`, without bias; rate·D² parameters."""

    def __init__(self, d_model: int, rate: int) -> None:
        super().__init__(d_model, rate)
        self.convolution = nn.Conv1d(d_model, d_model, rate, stride=rate, bias=False)

    def initialize(self) -> None:
        """Add 1/rate of the identity to the matrix of each tap, so that training starts near mean pooling."""
        _add_mean(self.convolution)

    def forward(self, states_BSD: Tensor, usage_BS: Tensor | None = None) -> Float[Tensor, "B G D"]:
        """Return Σ_k W_k x_{g·rate + k}."""
        compressed: Tensor = self.convolution(states_BSD.transpose(1, 2)).transpose(1, 2)
        return compressed


class DilatedConvolutions(CompressionFunction):
    """Convolution with 2 taps, then one with `rate` taps, dilation 2 and stride `rate`; (2 + rate)·D² parameters.

    The paper names dilated convolutions without their sizes. With these a compressed state depends on all states
    of its group and of the next one, which are still in the ordinary memory, so nothing is padded.
    """

    def __init__(self, d_model: int, rate: int) -> None:
        super().__init__(d_model, rate)
        self.lookahead = rate
        self.pairs = nn.Conv1d(d_model, d_model, 2, bias=False)
        self.convolution = nn.Conv1d(d_model, d_model, rate, stride=rate, dilation=2, bias=False)

    def initialize(self) -> None:
        """Add identities, so that training starts near the mean of a group and the next one."""
        _add_mean(self.pairs)
        _add_mean(self.convolution)

    def forward(self, states_BSD: Tensor, usage_BS: Tensor | None = None) -> Float[Tensor, "B G D"]:
        """Return Σ_k W_k y_{g·rate + 2k} with y_s = V_0 x_s + V_1 x_{s+1}, from (G + 1)·rate states."""
        compressed: Tensor = self.convolution(self.pairs(states_BSD.transpose(1, 2))).transpose(1, 2)
        return compressed


class MostUsed(CompressionFunction):
    """Of all G·rate states the G that received most attention, in their order in time.

    Usage is the attention probability in the segment that pushes the states out, averaged over heads and queries.
    """

    needs_usage = True

    def forward(self, states_BSD: Tensor, usage_BS: Tensor | None = None) -> Float[Tensor, "B G D"]:
        """Return the most used states of each stream.

        Args:
            states_BSD: S = G·rate states.
            usage_BS: average attention that each received.
        """
        assert usage_BS is not None
        n_kept = states_BSD.shape[1] // self.rate
        places_BG = usage_BS.topk(n_kept, dim=1).indices.sort(dim=1).values
        return states_BSD.gather(1, places_BG[:, :, None].expand(-1, -1, states_BSD.shape[2]))


@torch.no_grad()
def _add_mean(convolution: nn.Conv1d) -> None:
    """Add I / taps to the matrix of each tap."""
    n_taps = convolution.weight.shape[2]
    convolution.weight += torch.eye(len(convolution.weight)).to(convolution.weight)[:, :, None] / n_taps


FUNCTIONS: dict[str, type[CompressionFunction]] = dict(
    zip(COMPRESSIONS, (MaxPooling, MeanPooling, Convolution, DilatedConvolutions, MostUsed), strict=True)
)
