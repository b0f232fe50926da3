"""Absolute encodings: the sinusoids of Vaswani et al. 2017, the trained tables of Al-Rfou et al. 2018."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from txl_lightning.config.architecture import TransformerXLConfig
from txl_lightning.model.encodings.base import Encoding, register_encoding
from txl_lightning.model.positions import sinusoids_of_distances


@register_encoding("absolute", absolute=True)
class AbsoluteEncoding(Encoding):
    """Sinusoid of the distance to the end of the segment, added to the scaled embedding."""

    def embed(self, hidden_BTD: Float[Tensor, "B T D"], clamp_len: int) -> Float[Tensor, "B T D"]:
        """Add U_{T-1}, …, U_0 to the T tokens."""
        T, D = hidden_BTD.shape[1:]
        return hidden_BTD + sinusoids_of_distances(T, D, clamp_len, hidden_BTD)[1:]


@register_encoding("al_rfou", absolute=True, table="positions")
class AlRfouEncoding(Encoding):
    """Trained vector of every position, counted from the end of the segment, added to every layer's input.

    Positions beyond the table use its farthest row (row 0).
    """

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__(config)
        assert config.table_len is not None
        self.table = nn.Parameter(torch.empty(config.n_layer, config.table_len, config.d_model))

    def layer_input(self, n: int, hidden_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Add the rows of layer n."""
        n_rows, T = self.table.shape[1], hidden_BTD.shape[1]
        rows = torch.arange(n_rows - T, n_rows, device=hidden_BTD.device).clamp(min=0)
        return hidden_BTD + self.table[n][rows]
