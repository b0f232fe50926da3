"""The reference Transformer-XL: a PyTorch Lightning experiment framework."""

from txl_lightning.model import LanguageModel, Memory, TransformerXL, TransformerXLConfig

__version__ = "0.1.0"
__all__ = ["LanguageModel", "Memory", "TransformerXL", "TransformerXLConfig", "__version__"]
