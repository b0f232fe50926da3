"""Build the model that a configuration describes."""

from __future__ import annotations

from operator import attrgetter
from typing import TypeAlias

from txl_lightning.config.encoding_kinds import VARIABLE
from txl_lightning.config.lengths import table_len
from txl_lightning.config.schemas import Config, RecurrentModelConfig
from txl_lightning.errors import OptionError, require
from txl_lightning.model.baselines import RecurrentConfig, RecurrentLanguageModel, RecurrentState
from txl_lightning.model.compression import CompressiveMemory
from txl_lightning.model.config import TransformerXLConfig
from txl_lightning.model.memory import Memory
from txl_lightning.model.transformer_xl import TransformerXL

Model: TypeAlias = TransformerXL | RecurrentLanguageModel
State: TypeAlias = Memory | RecurrentState

# Option of every field of `TransformerXLConfig` that does not have its own name in the group `model`.
OPTIONS = {
    "encoding": "encoding.name",
    "table_len": "encoding.table_len",
    "interpolation": "encoding.interpolation",
    "mem_len": "memory.mem_len",
    "memory_start": "memory.start",
    "memory_reset": "memory.reset",
    "compressed_len": "memory.compressed_len",
    "compression": "memory.compression",
    "compression_rate": "memory.rate",
    "compression_loss": "memory.compression_loss",
    VARIABLE: VARIABLE,
}


def architecture(config: Config, vocab_size: int) -> TransformerXLConfig | RecurrentConfig:
    """Return the model's own config, made of the groups `model`, `encoding` and `memory`.

    Raises:
        OptionError: a value is not allowed; the error names the option as typed on the command line.
    """
    sizes = {name: value for name, value in vars(config.model).items() if name != "name"}
    sizes |= {"vocab_size": vocab_size, "cutoffs": tuple(config.model.cutoffs)}
    try:
        if isinstance(config.model, RecurrentModelConfig):
            mem_len, allowed = config.memory.mem_len, f"must be > 0: {config.model.name} always carries its state"
            require(mem_len > 0, "mem_len", mem_len, allowed)
            reset, allowed = config.memory.reset, f"must be never: {config.model.name} always carries its state"
            require(reset == "never", "memory_reset", reset, allowed)
            no_states = f"is for a Transformer-XL: {config.model.name} has no states to compress"
            require(config.memory.compression is None, "compression", config.memory.compression, no_states)
            return RecurrentConfig(**sizes)
        fields = {field: attrgetter(option)(config) for field, option in OPTIONS.items() if field != VARIABLE}
        return TransformerXLConfig(**{**fields, "table_len": table_len(config)}, **sizes)
    except OptionError as error:
        option = OPTIONS.get(error.option, f"model.{error.option}")
        raise OptionError(option.removesuffix(".name"), error.value, error.allowed) from error


def make_model(config: Config, vocab_size: int) -> Model:
    """Return a new model with weights drawn from torch's global random state.

    Raises:
        OptionError: a value is not allowed (see `architecture`).
    """
    sizes = architecture(config, vocab_size)
    return RecurrentLanguageModel(sizes) if isinstance(sizes, RecurrentConfig) else TransformerXL(sizes)


def state_from_dict(state: dict) -> State:
    """Restore the memory of a Transformer-XL or the state of a recurrent model from its `state_dict`."""
    if "n_compressed" in state:
        return CompressiveMemory.from_state_dict(state)
    return (Memory if "states" in state else RecurrentState).from_state_dict(state)
