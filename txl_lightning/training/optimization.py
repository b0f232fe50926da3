"""Optimizer and learning-rate schedule of the paper."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from txl_lightning.config.schemas import OptimizerConfig
from txl_lightning.errors import require
from txl_lightning.training.muon import MuonWithAdam

ADAM: dict[str, type[torch.optim.Optimizer]] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
OPTIMIZERS = (*ADAM, "muon")
NS_PRECISIONS = {"bf16-true": torch.bfloat16, "32-true": torch.float32}  # of Muon's iteration


def check_optimizer(config: OptimizerConfig) -> None:
    """Raise `OptionError` for an option that is not allowed."""
    require(config.name in OPTIMIZERS, "optimizer", config.name, f"must be one of {', '.join(OPTIMIZERS)}")
    has_muon = config.name != "muon" or hasattr(torch.optim, "Muon")
    require(has_muon, "optimizer", config.name, f"needs torch >= 2.9, this is {torch.__version__}")
    require(
        config.schedule in ("cosine", "constant"), "optimizer.schedule", config.schedule, "must be cosine or constant"
    )
    good_betas = len(config.betas) == 2 and all(0 <= beta < 1 for beta in config.betas)
    require(good_betas, "optimizer.betas", list(config.betas), "must be two numbers in [0, 1)")
    decay = config.weight_decay
    require(0 <= decay < math.inf, "optimizer.weight_decay", decay, "must be >= 0 and finite")
    # With 0 a parameter whose gradients were all 0, such as the row of a token not read yet, becomes 0 / 0.
    require(0 < config.eps < math.inf, "optimizer.eps", config.eps, "must be > 0 and finite")
    together = not config.split_qkv and config.name != "muon"
    require(not together, "optimizer.split_qkv", config.split_qkv, "is for optimizer=muon only")
    ns_precisions = ("auto", *NS_PRECISIONS)
    allowed = f"must be one of {', '.join(ns_precisions)}"
    require(config.ns_precision in ns_precisions, "optimizer.ns_precision", config.ns_precision, allowed)
    without_muon = config.ns_precision == "32-true" and config.name != "muon"
    require(not without_muon, "optimizer.ns_precision", config.ns_precision, "is for optimizer=muon only")
    require(0 < config.lr < math.inf, "optimizer.lr", config.lr, "must be > 0 and finite")
    require(config.warmup_steps >= 0, "optimizer.warmup_steps", config.warmup_steps, "must be an integer >= 0")
    require(0 <= config.min_lr <= config.lr, "optimizer.min_lr", config.min_lr, "must be between 0 and optimizer.lr")
    require(config.clip_norm >= 0, "optimizer.clip_norm", config.clip_norm, "must be >= 0 (0 for no clipping)")


def learning_rate(config: OptimizerConfig, step: int, max_steps: int) -> float:
    """Return the learning rate after `step` updates.

        step < warmup:  lr · step / warmup
        else (cosine):  min_lr + (lr - min_lr) · (1 + cos(π · (step - start) / (max_steps - start))) / 2

    start = 0 as in the paper's PyTorch code, or the end of the warm-up with `decay_after_warmup`, as in its
    TensorFlow code. The TensorFlow code also has min_lr > 0: 0.4 % of lr on GPUs, 1 % on TPUs.
    """
    if step < config.warmup_steps:
        return config.lr * step / config.warmup_steps
    if config.schedule == "constant":
        return config.lr
    start = config.warmup_steps if config.decay_after_warmup else 0
    progress = min(1.0, (step - start) / max(1, max_steps - start))
    return config.min_lr + (config.lr - config.min_lr) * 0.5 * (1.0 + math.cos(math.pi * progress))


def make_optimizer(
    model: nn.Module, config: OptimizerConfig, max_steps: int, fused: bool
) -> tuple[torch.optim.Optimizer, LambdaLR]:
    """Return the optimizer and its per-step schedule; `fused` must be off with a gradient scaler (16-mixed).

    `ns_precision=auto` is what `resolve_precision` makes of it, or else that of `torch.optim.Muon`.
    """
    b1, b2 = config.betas
    options: dict[str, Any] = {"lr": config.lr, "betas": (b1, b2), "eps": config.eps}
    options |= {"weight_decay": config.weight_decay, "fused": fused}
    optimizer: torch.optim.Optimizer
    if config.name == "muon":
        ns_dtype = NS_PRECISIONS.get(config.ns_precision, torch.bfloat16)
        optimizer = MuonWithAdam(model, **options, split_qkv=config.split_qkv, ns_dtype=ns_dtype)
    else:
        optimizer = ADAM[config.name](model.parameters(), **options)
    return optimizer, LambdaLR(optimizer, lambda step: learning_rate(config, step, max_steps) / config.lr)
