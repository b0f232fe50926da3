"""Precision of a training run where the config says `auto`."""

from __future__ import annotations

from dataclasses import replace

import torch

from txl_lightning.config.schemas import Config


def resolve_precision(config: Config) -> Config:
    """Return the config with `trainer.precision=auto` replaced by what this machine computes fastest.

        bf16-mixed    a CPU with AVX512-BF16 or AMX, or a GPU with bfloat16
        32-true       everything else: without such instructions bfloat16 is slower than float32

    The resolved value is part of the run's identity: it stands in `config.yaml` and in checkpoints, and a run resumes
    with the same one only.
    """
    if config.trainer.precision != "auto":
        return config
    if config.trainer.accelerator == "gpu":
        has_bfloat16 = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    else:
        has_bfloat16 = cpu_has_bfloat16()
    return replace(config, trainer=replace(config.trainer, precision="bf16-mixed" if has_bfloat16 else "32-true"))


def cpu_has_bfloat16() -> bool:
    """Return whether the CPU multiplies matrices of bfloat16 in hardware (torch's private CPU flags)."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
