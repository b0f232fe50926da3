"""Measure effective context without the framework: no Lightning, Hydra or W&B.

Losses in arrays need numpy only. Scoring a model, any object with `score`, needs torch, tqdm and jaxtyping too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from txl_lightning.recl.effective_context import EffectiveContext, relative_effective_context_lengths

if TYPE_CHECKING:
    from txl_lightning.evaluation.losses import WindowReader, window_losses, window_reader
    from txl_lightning.recl.loss_by_context import compare, context_curve, context_gains, position_blocks

    loss_grid = window_losses

OF_MODELS = {
    **dict.fromkeys(("compare", "context_curve", "context_gains", "position_blocks"), "recl.loss_by_context"),
    **dict.fromkeys(("WindowReader", "window_losses", "window_reader"), "evaluation.losses"),
}
__all__ = [
    "EffectiveContext",
    "WindowReader",
    "compare",
    "context_curve",
    "context_gains",
    "loss_grid",
    "position_blocks",
    "relative_effective_context_lengths",
    "window_losses",
    "window_reader",
]


def __getattr__(name: str) -> Any:
    """Import what scores models, and with it torch, at the first use of a name."""
    name = {"loss_grid": "window_losses"}.get(name, name)  # its name in 0.3
    if name not in OF_MODELS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"txl_lightning.{OF_MODELS[name]}"), name)
