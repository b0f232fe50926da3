"""Attention kernels: from the two factors of the logits to Σ_j softmax_j(logits_i) v_j, all with one signature.

    attend(query, keys, values, distances, visible, dropout)

    eager  the paper in torch's own operations, on any device: the judge of the others
    cpu    the same in blocks of queries and groups of heads, overwriting what no one reads again
    fused  torch's scaled_dot_product_attention, without gradient
    flex   torch's flex_attention, which never holds all probabilities

Of these a user chooses `eager`, which is the fastest of the first three where it runs, or `flex`; `auto` is `eager`
until `python -m benchmarks.kernels` shows another one to be faster on a GPU.
"""

from __future__ import annotations

from importlib import import_module

import torch
from jaxtyping import Float
from torch import Tensor

from txl_lightning.errors import require
from txl_lightning.model.kernels import cpu, eager, fused
from txl_lightning.model.kernels.cpu import is_eager_on_cpu
from txl_lightning.model.positions import DistanceLogits, VisibleKeys

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


def attend(
    kernel: str,
    query: Float[Tensor, "H _B _T E"] | None,
    keys: Float[Tensor, "H B K E"],
    values: Float[Tensor, "H B K E"],
    distances: DistanceLogits,
    visible: VisibleKeys,
    dropout: torch.nn.Module,
) -> Float[Tensor, "H B T E"]:
    """Return Σ_j softmax_j(logits_i) v_j over the visible keys j, by the chosen kernel.

    Args:
        kernel: eager, flex or auto.
        query: (q_i + u) / sqrt(E), terms (a) and (c); streams and tokens have size 1 without (a); None without both.
        keys: rotated already where the encoding rotates; not read without a query.
        values: v_j.
        distances: terms (b) and (d) by distance, computed by the kernel for as many queries and keys as it needs.
        visible: keys that each query may attend to.
        dropout: of the probabilities.

    Raises:
        OptionError: flex cannot compute this attention, or not on this device.
    """
    inputs = (query, keys, values, distances, visible, dropout)
    if kernel == "flex":  # imported when it is needed: that takes a second
        heads: Tensor = import_module("txl_lightning.model.kernels.flex").attend(*inputs)
        return heads
    if is_eager_on_cpu(values):
        return cpu.attend(*inputs)
    drops = dropout.training and dropout.p
    return eager.attend(*inputs) if torch.is_grad_enabled() or drops or query is None else fused.attend(*inputs)
