"""Tensors only: the model, its memory and the checkpoints of other implementations."""

from txl_lightning.model.baselines.recurrent import RecurrentConfig, RecurrentLanguageModel, RecurrentState
from txl_lightning.model.config import TransformerXLConfig
from txl_lightning.model.encodings import Encoding, LayerPositions, register_encoding
from txl_lightning.model.inference.cached import CachedTransformerXL
from txl_lightning.model.inference.generation import generate
from txl_lightning.model.inference.key_value_memory import KeyValueMemory
from txl_lightning.model.inference.sliding_window import SlidingWindow
from txl_lightning.model.language_model import LanguageModel
from txl_lightning.model.memory import Memory
from txl_lightning.model.transformer_xl import TransformerXL

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
    "register_encoding",
]
