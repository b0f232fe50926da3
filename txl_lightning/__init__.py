"""The reference Transformer-XL: a PyTorch Lightning experiment framework."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    )

__version__ = "0.4.0"
__all__ = [
    "CachedTransformerXL",
    "Encoding",
    "LanguageModel",
    "LayerPositions",
    "Memory",
    "TransformerXL",
    "TransformerXLConfig",
    "__version__",
    "generate",
    "register_encoding",
]


def __getattr__(name: str) -> Any:
    """Import the model, and with it torch, at the first use of a name: `txl --help` needs neither."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module("txl_lightning.model"), name)
    return value
