"""Products in bfloat16: where they are faster, and how a measurement uses them."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from functools import cache

import torch

from txl_lightning.errors import require

PRECISIONS = ("32-true", "bf16-mixed", "auto")
PRODUCTS = ((1024, 96, 288), (1024, 96, 384), (1024, 384, 96))  # rows, inner, columns: the layers of a small model
REPEATS = 10
NEEDED_SPEEDUP = 1.2  # of products; mixed precision also converts the weights in every step


def fastest_precision(accelerator: str) -> str:
    """Return what this machine computes fastest.

        bf16-mixed    a GPU with bfloat16, or a CPU with `cpu_bfloat16_speedup` of at least `NEEDED_SPEEDUP`
        32-true       everything else

    Some CPUs have instructions for bfloat16 that are slower than those for float32. Two processes may choose
    differently where the speedup is near `NEEDED_SPEEDUP`.

    Args:
        accelerator: `gpu`, `mps`, or anything else for the CPU.
    """
    if accelerator == "mps":
        return "32-true"
    if accelerator == "gpu":
        is_faster = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    else:
        is_faster = cpu_has_bfloat16() and cpu_bfloat16_speedup() >= NEEDED_SPEEDUP
    return "bf16-mixed" if is_faster else "32-true"


def cpu_has_bfloat16() -> bool:
    """Return whether the CPU multiplies matrices of bfloat16 in hardware (torch's private CPU flags)."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


@cache
def cpu_bfloat16_speedup() -> float:
    """Return how many times as fast as in float32 one thread multiplies the `PRODUCTS` in bfloat16, in about 50 ms.

    The best of several turns counts, in CPU time: other programs may wait for the same core.
    """
    dtypes, threads = (torch.float32, torch.bfloat16), torch.get_num_threads()
    best = dict.fromkeys(dtypes, float("inf"))
    torch.set_num_threads(1)
    try:
        for dtype in dtypes * REPEATS:
            factors = [(torch.ones(n, k, dtype=dtype), torch.ones(k, m, dtype=dtype)) for n, k, m in PRODUCTS]
            started = time.thread_time()
            for a, b in factors:
                torch.mm(a, b)
            best[dtype] = min(best[dtype], time.thread_time() - started)
    finally:
        torch.set_num_threads(threads)
    return best[torch.float32] / best[torch.bfloat16]


def chosen_precision(precision: str, accelerator: str) -> str:
    """Return the precision of a measurement: as given, or for `auto` that of `fastest_precision`.

    Raises:
        OptionError: it is none of `PRECISIONS`.
    """
    require(precision in PRECISIONS, "precision", precision, f"must be one of {', '.join(PRECISIONS)}")
    return fastest_precision(accelerator) if precision == "auto" else precision


def autocast(precision: str, device: torch.device) -> AbstractContextManager:
    """Return the context in which a model scores in this precision.

    With bf16-mixed, products are in bfloat16, and weights, residual sums and losses in float32. With 32-true the
    model is used as it is.

    Args:
        precision: of `chosen_precision`.
        device: device of the model.
    """
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16-mixed")
