"""Attention kernels: from the factors of the logits to Σ_j softmax_j(logits_i) v_j.

default  the fastest exact kernel on this device: on a CPU in blocks of queries and groups of heads (`cpu`), else
         torch's own operations (`eager`, the judge of the others), fused where neither gradients nor
         probabilities are needed
flex     torch's flex_attention on a GPU, which never holds all probabilities
"""

from __future__ import annotations

from importlib import import_module

import torch
from jaxtyping import Float
from torch import Tensor, nn

from txl_lightning.errors import require
from txl_lightning.model.kernels import cpu, eager
from txl_lightning.model.kernels.cpu import is_eager_on_cpu
from txl_lightning.model.kernels.eager import Factors

KERNELS = ("default", "flex")


def check_kernel(kernel: str, option: str = "attention") -> None:
    """Validate the name of a kernel.

    Args:
        kernel: value of the option.
        option: name of the option, for the error.

    Raises:
        OptionError: there is no such kernel.
    """
    require(kernel in KERNELS, option, kernel, f"must be one of {', '.join(KERNELS)}")


def attend(kernel: str, factors: Factors, dropout: nn.Module) -> Float[Tensor, "H B T E"]:
    """Return Σ_j softmax_j(logits_i) v_j over the visible keys j, by the chosen kernel.

    Args:
        kernel: default or flex.
        factors: of the logits, and the values.
        dropout: of the probabilities.

    Raises:
        OptionError: flex cannot compute this attention, or not on this device.
    """
    if kernel == "flex":  # imported when it is needed: that takes a second
        heads: Tensor = import_module("txl_lightning.model.kernels.flex").attend(factors, dropout)
        return heads
    if is_eager_on_cpu(factors.values):
        return cpu.attend(factors, dropout)
    draws = dropout.training and dropout.p
    if torch.is_grad_enabled() or draws or factors.query is None:
        return eager.attend(factors, dropout)
    return eager.attend_fused(factors)
