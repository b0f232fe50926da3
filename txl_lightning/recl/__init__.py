"""Measure effective context without the framework: no Lightning, Hydra or W&B.

Losses in arrays need numpy only. Scoring a model, any object with `score`, needs torch, tqdm and
jaxtyping too.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from txl_lightning.recl.effective_context import (
    EffectiveContext,
    relative_effective_context_lengths,
)

MODULES = {
    "WindowReader": "windows",
    "compare": "comparison",
    "context_curve": "loss_by_context",
    "position_blocks": "positions",
    "window_losses": "windows",
    "window_reader": "windows",
}
__all__ = ["EffectiveContext", "relative_effective_context_lengths", *MODULES]


def __getattr__(name: str) -> Any:
    """Import what scores models, and torch with it, when a name is first used."""
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{MODULES[name]}"), name)
