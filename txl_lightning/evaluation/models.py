"""Build the model that a configuration describes."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, TypeAlias

from txl_lightning.config.architecture import (
    RecurrentConfig,
    TransformerXLConfig,
    option_names,
    options_beside,
)
from txl_lightning.config.lengths import table_len
from txl_lightning.config.schemas import Config, RecurrentModelConfig
from txl_lightning.errors import OptionError, require, require_memory
from txl_lightning.model.baselines import RecurrentLanguageModel, RecurrentState
from txl_lightning.model.memory import Memory
from txl_lightning.model.transformer_xl import VARIANTS, TransformerXL
from txl_lightning.registry import VARIABLE

Model: TypeAlias = TransformerXL | RecurrentLanguageModel
State: TypeAlias = Memory | RecurrentState

LAYER_BYTES = 40_000  # the modules in a layer in Python, measured


def model_class(config: Config) -> type[TransformerXL | RecurrentLanguageModel]:
    """Return the class for a run's model: the core's, or the variant that the group `variant` names.

    Raises:
        OptionError: there is no such variant, or the model is recurrent.
    """
    name = str(config.variant.get("name") or "")
    if isinstance(config.model, RecurrentModelConfig):
        allowed = f"must be none: {config.model.name} is no Transformer-XL"
        require(not name, "variant", name, allowed)
        return RecurrentLanguageModel
    return VARIANTS.named(name) if name else TransformerXL


def carries_state(config: Config) -> bool:
    """Return whether a segment reads earlier ones, through a memory or a state that is always carried."""
    return config.memory.mem_len > 0 or always_carries_state(config)


def always_carries_state(config: Config) -> bool:
    """Return whether a segment also reads earlier ones with `mem_len=0`: an LSTM, QRNN or variant does."""
    kind: Any = model_class(config).config_class
    return kind is RecurrentConfig or kind(None, mem_len=0).is_recurrent


def architecture(config: Config, vocab_size: int) -> TransformerXLConfig | RecurrentConfig:
    """Return the model's config, made from the groups `model`, `encoding`, `memory` and `variant`.

    Raises:
        OptionError: a value is not allowed; the error names the option as typed on the command line.
    """
    model = model_class(config)
    kind: Any = model.config_class
    is_recurrent = kind is RecurrentConfig
    core = RecurrentConfig if is_recurrent else TransformerXLConfig
    _check_abilities(config, model)
    options = option_names(core)
    values = {}
    for field, option in options.items():
        if field != "table_len":
            values[field] = attrgetter(option)(config)
    values["cutoffs"] = tuple(values["cutoffs"])
    variant_options = options_beside(kind, core)
    for name in variant_options:
        options[name] = f"variant.{name}"
    for name, value in config.variant.items():
        if name != "name":
            known = ", ".join(variant_options) or "none"
            allowed = f"unknown option for variant={config.variant['name']}; it has {known}"
            require(
                name in variant_options,
                f"variant.{name}",
                value,
                allowed,
            )
            values[name] = value
    if is_recurrent:
        carries = f"{config.model.name} always carries its state"
        memory = config.memory
        allowed = f"must be > 0: {carries}"
        require(memory.mem_len > 0, "memory.mem_len", memory.mem_len, allowed)
        allowed = f"must be never: {carries}"
        require(memory.reset == "never", "memory.reset", memory.reset, allowed)
    try:
        if not is_recurrent:
            values["table_len"] = table_len(config)
        return kind(vocab_size=vocab_size, **values)
    except OptionError as error:
        options.setdefault(VARIABLE, VARIABLE)
        option = options.get(error.option, f"model.{error.option}")
        raise OptionError(
            option.removesuffix(".name"),
            error.value,
            error.allowed,
        ) from error


def _check_abilities(config: Config, model: Any) -> None:
    """Refuse options that need an ability that a variant lacks."""
    cannot = getattr(model, "cannot", {})
    documents = config.memory.reset == "document" and "document"
    asked = (
        ("memory.reset", documents, "documents"),
        ("memory.gradient_segments", config.memory.gradient_segments, "gradient segments"),
        ("model.ext_len", getattr(config.model, "ext_len", 0), "extended context"),
    )
    for option, value, ability in asked:
        why = f"is not possible with variant={config.variant.get('name')}: {cannot.get(ability)}"
        require(
            not value or ability not in cannot,
            option,
            value,
            why,
        )


def make_model(config: Config, vocab_size: int) -> Model:
    """Return a new model with weights drawn from torch's global random state.

    Raises:
        OptionError: a value is not allowed (see `architecture`).
    """
    model: Any = model_class(config)
    made: Model = model(architecture(config, vocab_size))
    return made


def require_room(sizes: TransformerXLConfig | RecurrentConfig, bytes_each: int = 4) -> None:
    """Check that the machine's memory can hold all layers' matrices, before anything is built.

    Args:
        sizes: the model's config.
        bytes_each: bytes per parameter, including its optimizer state.

    Raises:
        OptionError: it cannot.
    """
    rows = 3 * sizes.d_model
    named = ["n_layer", "d_model"]
    if isinstance(sizes, TransformerXLConfig):
        rows = 2 * sizes.d_inner + 4 * sizes.n_head * sizes.d_head
        named += ["d_inner", "n_head", "d_head"]
    n_bytes = sizes.n_layer * (bytes_each * rows * sizes.d_model + LAYER_BYTES)
    values = ", ".join(f"{name} {getattr(sizes, name)}" for name in named)
    require_memory(n_bytes, "model", values)
