"""Encoding of Shaw et al. 2018, as in the paper's code."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from txl_lightning.config.architecture import TransformerXLConfig
from txl_lightning.model.encodings.base import Encoding, LayerPositions, register_encoding


@register_encoding("shaw", "abcd", table="distances")
class ShawEncoding(Encoding):
    """Trained vector (b) and bias (d) of every distance below `table_len`, and u (c), for every layer.

    The paper's code, which produced Table 6, has all four terms; the paper's text has only (a) and (b):
    `terms="ab"`. Distances beyond the table use its farthest row (row 0); `clamp_len` shortens the table.
    """

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__(config)
        assert config.table_len is not None
        self.table_len, terms = config.table_len, config.active_terms
        table = (config.n_layer, self.table_len, config.n_head, config.d_head)
        self.u = nn.Parameter(torch.empty(config.n_layer, *table[2:])) if "c" in terms else None
        self.table = nn.Parameter(torch.empty(table)) if "b" in terms else None
        self.distance_bias = nn.Parameter(torch.empty(table[:3])) if "d" in terms else None

    def forward(self, n_keys: int, clamp_len: int, like: Tensor) -> list[LayerPositions]:
        """Return u and the table's rows and biases of the distances K, …, 0."""
        farthest = min(self.table_len, clamp_len) - 1 if clamp_len > 0 else self.table_len - 1
        distances = torch.arange(n_keys, -1, -1, device=like.device).clamp(max=farthest)
        rows = self.table_len - 1 - distances
        return [
            LayerPositions(
                u_HE=None if self.u is None else self.u[n],
                table_HSE=None if self.table is None else self.table[n][rows].transpose(0, 1),
                bias_HS=None if self.distance_bias is None else self.distance_bias[n][rows].T,
            )
            for n in range(self.n_layer)
        ]
