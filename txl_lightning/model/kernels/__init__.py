"""Attention kernels: from the two factors of the logits to Σ_j softmax_j(logits_i) v_j, all with one signature.

    attend(factors, dropout)

    eager  the paper in torch's own operations, on any device: the judge of the others
    cpu    the same in blocks of queries and groups of heads, overwriting what no one reads again
    fused  torch's scaled_dot_product_attention, without gradient
    flex   torch's flex_attention, which never holds all probabilities

A user chooses `eager` or `flex`. The choice `eager` runs the fastest of the first three: `cpu` on a CPU, `fused` on a
GPU where neither gradients nor probabilities are needed, else `eager`. `auto` is `eager` until `benchmarks/gpu.sh`
shows another one to be faster on a GPU.
"""

from __future__ import annotations

from importlib import import_module

import torch
from jaxtyping import Float
from torch import Tensor, nn

from txl_lightning.errors import require
from txl_lightning.model.kernels import cpu, eager, fused
from txl_lightning.model.kernels.cpu import is_eager_on_cpu
from txl_lightning.model.kernels.eager import Factors

KERNELS = ("eager", "flex", "auto")


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
        kernel: eager, flex or auto.
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
    needs_probabilities = torch.is_grad_enabled() or (dropout.training and dropout.p) or factors.query is None
    return (eager if needs_probabilities else fused).attend(factors, dropout)
