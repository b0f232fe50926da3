"""Products in bfloat16: where the hardware has them, and how a measurement uses them."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from txl_lightning.errors import require

PRECISIONS = ("32-true", "bf16-mixed", "auto")


def fastest_precision(accelerator: str) -> str:
    """Return what this machine computes fastest.

        bf16-mixed    a CPU with AVX512-BF16 or AMX, or a GPU with bfloat16
        32-true       everything else: without such instructions bfloat16 is slower than float32

    Args:
        accelerator: `gpu`, `mps`, or anything else for the CPU.
    """
    if accelerator == "mps":
        return "32-true"
    if accelerator == "gpu":
        has_bfloat16 = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    else:
        has_bfloat16 = cpu_has_bfloat16()
    return "bf16-mixed" if has_bfloat16 else "32-true"


def cpu_has_bfloat16() -> bool:
    """Return whether the CPU multiplies matrices of bfloat16 in hardware (torch's private CPU flags)."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


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
