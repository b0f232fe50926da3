"""The model, its memory, inference, baselines and other implementations' checkpoints; tensors only."""

from txl_lightning.config.architecture import TransformerXLConfig
from txl_lightning.model.baselines import RecurrentConfig, RecurrentLanguageModel, RecurrentState
from txl_lightning.model.encodings import Encoding, LayerPositions, register_encoding
from txl_lightning.model.inference.cached import CachedTransformerXL, KeyValueMemory
from txl_lightning.model.inference.generation import generate, generate_all
from txl_lightning.model.inference.sliding_window import SlidingWindow
from txl_lightning.model.language_model import LanguageModel
from txl_lightning.model.memory import Memory
from txl_lightning.model.transformer_xl import TransformerXL, register_variant

__all__ = [
    "CachedTransformerXL",
    "Encoding",
    "KeyValueMemory",
    "LanguageModel",
    "LayerPositions",
    "Memory",
    "RecurrentConfig",
    "RecurrentLanguageModel",
    "RecurrentState",
    "SlidingWindow",
    "TransformerXL",
    "TransformerXLConfig",
    "generate",
    "generate_all",
    "register_encoding",
    "register_variant",
]
