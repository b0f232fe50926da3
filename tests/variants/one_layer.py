"""The first layer of a tiny model, alone."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from txl_lightning.model.positions import VisibleKeys, attention_mask


class LayerInputs(NamedTuple):
    """Arguments of an attention or a layer."""

    hidden: Tensor
    memory: Tensor
    positions: Any
    visible: VisibleKeys


def layer_inputs(model: Any, T: int, M: int) -> tuple[Tensor, LayerInputs]:
    """Random states [2, M + T, 8], and the layer's arguments made of them."""
    states = torch.randn(
        2,
        M + T,
        8,
        dtype=torch.float64,
        requires_grad=True,
    )
    memory, hidden = states.split(
        [M, T],
        dim=1,
    )
    positions = model.encoding.positions(M + T, -1, hidden)[0]
    visible = VisibleKeys(attention_mask(T, M, M, None, hidden))
    return states, LayerInputs(hidden, memory, positions, visible)
