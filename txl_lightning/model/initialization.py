"""The initialisation of the paper's code."""

from __future__ import annotations

from torch import nn

WEIGHT_STD = 0.02


def initialize(model: nn.Module) -> None:
    """Weights, embeddings, u and v from N(0, 0.02²), LayerNorm gains from N(1, 0.02²), biases zero."""
    for name, parameter in model.named_parameters():
        if "norm" in name and name.endswith("weight"):
            nn.init.normal_(parameter, 1.0, WEIGHT_STD)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
        else:
            nn.init.normal_(parameter, 0.0, WEIGHT_STD)
