"""Initialisation of the paper's code."""

from __future__ import annotations

from torch import nn

WEIGHT_STD = 0.02
PROJECTION_STD = 0.01


def initialize(model: nn.Module, std: float = WEIGHT_STD) -> None:
    """Draw the parameters of a model in place.

    Weights, embeddings, tables, u and v are from N(0, std²), projections of embedding and softmax from
    N(0, 0.01²), gains of norms from N(1, std²); biases, those of distances included, are zero.

    Args:
        model: any model of this package.
        std: standard deviation; 0.02 in the paper's PyTorch code.
    """
    for name, parameter in model.named_parameters():
        if "norm" in name and name.endswith("weight"):
            nn.init.normal_(parameter, 1.0, std)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
        else:
            nn.init.normal_(parameter, 0.0, PROJECTION_STD if "projections." in name else std)
