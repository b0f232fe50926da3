"""The reference Transformer-XL: a PyTorch Lightning experiment framework."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from txl_lightning.application import compose
    from txl_lightning.evaluation.trained import load_trained
    from txl_lightning.model import (
        CachedTransformerXL,
        Encoding,
        LanguageModel,
        LayerPositions,
        Memory,
        TransformerXL,
        TransformerXLConfig,
        generate,
        register_encoding,
        register_variant,
    )
    from txl_lightning.training.module import LanguageModelModule
    from txl_lightning.training.run import train

__version__ = "0.6.0"
__all__ = [
    "CachedTransformerXL",
    "Encoding",
    "LanguageModel",
    "LanguageModelModule",
    "LayerPositions",
    "Memory",
    "TransformerXL",
    "TransformerXLConfig",
    "__version__",
    "compose",
    "generate",
    "load_trained",
    "register_encoding",
    "register_variant",
    "train",
]
OUTSIDE_THE_MODEL = {
    "compose": "application",
    "load_trained": "evaluation.trained",
    "LanguageModelModule": "training.module",
    "train": "training.run",
}


def __getattr__(name: str) -> Any:
    """Import what has a name, and with it torch or Lightning, when it is used: `txl --help` needs neither."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = OUTSIDE_THE_MODEL.get(name, "model")
    return getattr(import_module(f"txl_lightning.{module}"), name)
