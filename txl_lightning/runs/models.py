"""Build the model that a configuration describes."""

from __future__ import annotations

from operator import attrgetter
from typing import TypeAlias

from txl_lightning.config.architecture import RecurrentConfig, TransformerXLConfig, option_names
from txl_lightning.config.encoding_kinds import VARIABLE
from txl_lightning.config.lengths import forget_len, table_len
from txl_lightning.config.schemas import Config, RecurrentModelConfig
from txl_lightning.errors import OptionError, require
from txl_lightning.model.baselines import RecurrentLanguageModel, RecurrentState
from txl_lightning.model.compression import CompressiveMemory
from txl_lightning.model.memory import Memory
from txl_lightning.model.transformer_xl import TransformerXL

Model: TypeAlias = TransformerXL | RecurrentLanguageModel
State: TypeAlias = Memory | RecurrentState

OPTIONS = {**option_names(TransformerXLConfig), VARIABLE: VARIABLE}  # by the name in an error


def architecture(config: Config, vocab_size: int) -> TransformerXLConfig | RecurrentConfig:
    """Return the model's own config, made of the groups `model`, `encoding` and `memory`.

    Raises:
        OptionError: a value is not allowed; the error names the option as typed on the command line.
    """
    recurrent, memory = isinstance(config.model, RecurrentModelConfig), config.memory
    kind = RecurrentConfig if recurrent else TransformerXLConfig
    values = {field: attrgetter(option)(config) for field, option in option_names(kind).items()}
    values["cutoffs"] = tuple(values["cutoffs"])
    try:
        if recurrent:
            carries = f"{config.model.name} always carries its state"
            require(memory.mem_len > 0, "mem_len", memory.mem_len, f"must be > 0: {carries}")
            require(memory.reset == "never", "memory_reset", memory.reset, f"must be never: {carries}")
            no_states = f"is for a Transformer-XL: {config.model.name} has no states to compress"
            require(memory.compression is None, "compression", memory.compression, no_states)
            require(memory.n_tokens == 0, "n_tokens", memory.n_tokens, f"must be 0: {carries}")
        else:
            values |= {"table_len": table_len(config), "forget_len": forget_len(config)}
        return kind(vocab_size=vocab_size, **values)
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
