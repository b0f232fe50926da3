"""Absolute encoding of Al-Rfou et al. 2018."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from txl_lightning.config.architecture import TransformerXLConfig
from txl_lightning.model.encodings.base import Encoding, register_encoding


@register_encoding("al_rfou", absolute=True, table="positions")
class AlRfouEncoding(Encoding):
    """Trained vector of every position, counted from the end of the segment, added to every layer's input.

    Positions beyond the table use its farthest row (row 0).
    """

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__(config)
        self.table = nn.Parameter(torch.empty(config.n_layer, config.required_table_len, config.d_model))

    def layer_input(self, n: int, hidden_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Add the rows of layer n."""
        n_rows, T = self.table.shape[1], hidden_BTD.shape[1]
        rows = torch.arange(n_rows - T, n_rows, device=hidden_BTD.device).clamp(min=0)
        return hidden_BTD + self.table[n][rows]
