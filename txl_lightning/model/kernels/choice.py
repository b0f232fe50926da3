"""Choice of an attention kernel, and the call of a fused one."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from txl_lightning.errors import require
from txl_lightning.model.positions import VisibleKeys

KERNELS = ("eager", "flex", "triton", "auto")
# `auto` by type of device, as measured by `python -m benchmarks.kernels`. No GPU was measured yet.
FASTEST = {"cpu": "eager", "cuda": "eager"}


def check_kernel(kernel: str, option: str = "attention") -> None:
    """Validate the name of a kernel.

    Args:
        kernel: value of the option.
        option: name of the option, for the error.

    Raises:
        OptionError: there is no such kernel, or its package is not installed.
    """
    require(kernel in KERNELS, option, kernel, f"must be one of {', '.join(KERNELS)}")
    installed = kernel != "triton" or find_spec("triton") is not None
    require(installed, option, kernel, "needs the package triton: pip install triton")


def kernel_on(
    device: torch.device,
    kernel: str,
    by_stream: bool = False,
    dtype: torch.dtype = torch.float32,
    dropout: float = 0.0,
) -> str:
    """Return the kernel itself, or for `auto` the fastest that was measured on this type of device.

    `auto` is eager where that one cannot compute the attention.

    Args:
        device: device of the keys.
        kernel: eager, flex, triton or auto.
        by_stream: whether every stream has a mask of its own, which only eager has.
        dtype: type of the keys; of float64 only eager.
        dropout: of the softmax probabilities, which flex has not.

    Raises:
        OptionError: a fused kernel is asked for with a mask for every stream.
    """
    if kernel == "auto":
        fastest = FASTEST.get(device.type, "eager")
        possible = not by_stream and dtype != torch.float64 and not (fastest == "flex" and dropout)
        return fastest if possible and (fastest != "triton" or _has_triton()) else "eager"
    allowed = "has one mask for all streams; memory_reset=document needs eager"
    require(kernel == "eager" or not by_stream, "attention", kernel, allowed)
    return kernel


def is_eager_on_cpu(tensor: Tensor) -> bool:
    """Return whether operations on a tensor run one by one on the CPU: not on another device or in a compiled graph.

    There the CPU computes in parts and overwrites what no one reads again.
    """
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def has_hooks(module: nn.Module) -> bool:
    """Return whether hooks, its own or those of all modules, may keep a module's inputs, outputs or gradients."""
    own = (module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks, module._backward_hooks)
    return any(own) or bool(_has_any_global_hook())


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def attend_fused(
    kernel: str,
    query: Float[Tensor, "H _B _T E"] | None,
    kv_PHBKE: Float[Tensor, "P H B K E"],
    by_distance: Float[Tensor, "H _BT S"] | None,
    visible: VisibleKeys,
    dropout: float,
) -> Float[Tensor, "H B T E"]:
    """Return Σ_j softmax_j(query_i·k_j + by_distance_{i, T - i + j}) v_j over the visible keys j.

    Args:
        kernel: flex or triton.
        query: scaled; None for a score without terms (a) and (c). Streams and tokens may have size 1, meaning all.
        kv_PHBKE: keys and values, or values alone.
        by_distance: scores of the distances K, …, 0 of every query, or one row for all; None for none.
        visible: keys that the queries may attend to.
        dropout: probability that a softmax probability is set to zero; the others are divided by 1 - dropout.

    Raises:
        OptionError: the kernel cannot do this on this device.
    """
    _, H, B, K, E = kv_PHBKE.shape
    T = len(visible.mask_TK)
    query_HBTE = None if query is None else query.to(kv_PHBKE.dtype).expand(H, B, T, E)
    by_distance_HBTS = None
    if by_distance is not None:
        shape = (H, B, T, K + 1) if by_distance.shape[1] == B * T else (H, 1, 1, K + 1)
        by_distance_HBTS = by_distance.contiguous().view(shape).expand(H, B, T, K + 1)
    lengths = (T, visible.first_key, K + 1 if visible.attention_len is None else visible.attention_len)
    # Neither module is imported before it is needed: triton may be missing, and torch's takes a second.
    if kernel == "triton":
        from txl_lightning.model.kernels.triton_attention import attend_triton

        return attend_triton(query_HBTE, kv_PHBKE, by_distance_HBTS, *lengths, dropout)
    from txl_lightning.model.kernels.flex import attend_flex

    return attend_flex(query_HBTE, kv_PHBKE, by_distance_HBTS, *lengths, dropout)
