"""The reference Transformer-XL: a PyTorch Lightning experiment framework."""

from txl_lightning.model import (
    CachedTransformerXL,
    LanguageModel,
    Memory,
    TransformerXL,
    TransformerXLConfig,
    generate,
)

__version__ = "0.1.0"
__all__ = [
    "CachedTransformerXL",
    "LanguageModel",
    "Memory",
    "TransformerXL",
    "TransformerXLConfig",
    "__version__",
    "generate",
]
