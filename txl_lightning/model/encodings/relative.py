"""Relative encoding of Transformer-XL (section 3.3)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from txl_lightning.config.architecture import TransformerXLConfig
from txl_lightning.model.encodings.base import Encoding, LayerPositions, register_encoding
from txl_lightning.model.layers import Dropout
from txl_lightning.model.positions import sinusoids_of_distances


@register_encoding("relative", "abcd", projects=True)
class RelativeEncoding(Encoding):
    """Sinusoids of distances; content bias u and position bias v of all layers, or of each one (`untie_biases`)."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__(config)
        shape = (config.n_layer if config.untie_biases else 1, config.n_head, config.d_head)
        self.u = nn.Parameter(torch.empty(shape)) if "c" in config.active_terms else None
        self.v = nn.Parameter(torch.empty(shape)) if "d" in config.active_terms else None
        self.d_model, self.has_positions = config.d_model, bool(set("bd") & set(config.active_terms))
        self.dropout = Dropout(config.dropout)

    def forward(self, n_keys: int, clamp_len: int, like: Tensor) -> list[LayerPositions]:
        """Return u, v and the sinusoids of the distances K, …, 0."""
        sinusoids = None
        if self.has_positions:
            sinusoids = self.dropout(sinusoids_of_distances(n_keys, self.d_model, clamp_len, like))
        return [
            LayerPositions(_of_layer(self.u, n), _of_layer(self.v, n), sinusoids_SD=sinusoids)
            for n in range(self.n_layer)
        ]


def _of_layer(bias: Tensor | None, n: int) -> Tensor | None:
    """Return the u or v of layer n, or the shared one."""
    return None if bias is None else bias[n if len(bias) > 1 else 0]
