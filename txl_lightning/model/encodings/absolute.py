"""Absolute encoding of Vaswani et al. 2017."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from txl_lightning.model.encodings.base import Encoding, register_encoding
from txl_lightning.model.positions import sinusoids_of_distances


@register_encoding("absolute", absolute=True)
class AbsoluteEncoding(Encoding):
    """Sinusoid of the distance to the end of the segment, added to the scaled embedding."""

    def embed(self, hidden_BTD: Float[Tensor, "B T D"], clamp_len: int) -> Float[Tensor, "B T D"]:
        """Add U_{T-1}, …, U_0 to the T tokens."""
        T, D = hidden_BTD.shape[1:]
        return hidden_BTD + sinusoids_of_distances(T, D, clamp_len, hidden_BTD)[1:]
