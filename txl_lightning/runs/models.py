"""The model that a configuration names."""

from __future__ import annotations

from typing import TypeAlias

from txl_lightning.config import Config
from txl_lightning.lengths import architecture
from txl_lightning.model.memory import Memory
from txl_lightning.model.recurrent import RecurrentConfig, RecurrentLanguageModel, RecurrentState
from txl_lightning.model.transformer_xl import TransformerXL

Model: TypeAlias = TransformerXL | RecurrentLanguageModel
State: TypeAlias = Memory | RecurrentState


def make_model(config: Config, vocab_size: int) -> Model:
    """A new model, its weights drawn from torch's current random state.

    Raises:
        OptionError: a size is not allowed.
    """
    sizes = architecture(config, vocab_size)
    return RecurrentLanguageModel(sizes) if isinstance(sizes, RecurrentConfig) else TransformerXL(sizes)


def state_from_dict(state: dict) -> State:
    """A memory or a recurrent state out of a checkpoint."""
    return (Memory if "states" in state else RecurrentState).from_state_dict(state)
