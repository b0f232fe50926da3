"""The reference Transformer-XL: a PyTorch Lightning experiment framework."""

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

__version__ = "0.1.0"
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
