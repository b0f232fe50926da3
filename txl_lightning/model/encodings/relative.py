"""The paper's encoding (section 3.3)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from txl_lightning.model.config import TransformerXLConfig
from txl_lightning.model.dropout import Dropout
from txl_lightning.model.encodings.base import Encoding, LayerPositions, register_encoding
from txl_lightning.model.positions import sinusoids_of_distances


@register_encoding("relative", "abcd", projects=True)
class RelativeEncoding(Encoding):
    """The paper's: sinusoids of distances, u and v shared by all layers or one each (`untie_biases`)."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__(config)
        shape = (config.n_layer if config.untie_biases else 1, config.n_head, config.d_head)
        self.u = nn.Parameter(torch.empty(shape)) if "c" in config.active_terms else None
        self.v = nn.Parameter(torch.empty(shape)) if "d" in config.active_terms else None
        self.d_model, self.has_positions = config.d_model, bool(set("bd") & set(config.active_terms))
        self.dropout = Dropout(config.dropout)

    def forward(self, n_keys: int, clamp_len: int, like: Tensor) -> list[LayerPositions]:
        """Distances from `clamp_len` on share one sinusoid."""
        sinusoids = None
        if self.has_positions:
            sinusoids = self.dropout(sinusoids_of_distances(n_keys, self.d_model, clamp_len, like))

        def of_layer(bias: Tensor | None, n: int) -> Tensor | None:
            return None if bias is None else bias[n if len(bias) > 1 else 0]

        return [
            LayerPositions(of_layer(self.u, n), of_layer(self.v, n), sinusoids_SD=sinusoids)
            for n in range(self.n_layer)
        ]
