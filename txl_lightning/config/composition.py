"""Register the schemas of `conf/` with Hydra."""

from __future__ import annotations

from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from omegaconf import II, OmegaConf

from txl_lightning.config.schemas import (
    CONF,
    OWN_OPTIONS,
    Config,
    DataConfig,
    EncodingConfig,
    LoggerConfig,
    MemoryConfig,
    OptimizerConfig,
    RecurrentModelConfig,
    TableEncodingConfig,
    TrainerConfig,
    TransformerXLModelConfig,
    typed,
)
from txl_lightning.files import new_directory
from txl_lightning.guests import CHOICES, load_guests

# `${new_directory:PATH}` in `conf/common.yaml`; cached, so that a run has one directory.
OmegaConf.register_new_resolver("new_directory", new_directory, use_cache=True, replace=True)


def register_schemas() -> None:
    """Register the schemas of a training config, `train_schema` and `schema` in every group, and the user's guests.

    Raises:
        OptionError: a file of guests cannot be imported.
    """
    load_guests()
    store = ConfigStore.instance()
    for (group, name), choice in CHOICES.items():
        if not (CONF / group / f"{name}.yaml").is_file():
            store.store(group=group, name=name, node=choice)
    store.store(name="train_schema", node=Config)
    store.store(group="model", name="recurrent_schema", node=RecurrentModelConfig)
    store.store(group="encoding", name="table_schema", node=TableEncodingConfig)
    for corpus, options in OWN_OPTIONS.items():
        store.store(group="data", name=f"{corpus}_schema", node=options(seed=II("seed")))
    for group, node in {
        "model": TransformerXLModelConfig,
        "encoding": EncodingConfig,
        "memory": MemoryConfig,
        "data": DataConfig(seed=II("seed")),
        "optimizer": OptimizerConfig,
        "trainer": TrainerConfig,
        "logger": LoggerConfig,
    }.items():
        store.store(group=group, name="schema", node=node)


def compose(*overrides: str) -> Any:
    """Return the config that `txl train OVERRIDES` trains, for notebooks: `training.run.train(config, directory)`.

    Raises:
        HydraException: an override is not usable.
    """
    register_schemas()
    kept = GlobalHydra.instance().hydra  # of a program with a Hydra of its own
    GlobalHydra.instance().clear()
    try:
        with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
            return typed(hydra.compose("config", overrides=list(overrides)))
    finally:
        GlobalHydra.instance().hydra = kept


def register_command(name: str, schema: type) -> None:
    """Register the options of another command as `NAME_schema`, for `conf/NAME.yaml` or in its place."""
    ConfigStore.instance().store(name=f"{name}_schema", node=schema)
    if not (CONF / f"{name}.yaml").is_file():
        ConfigStore.instance().store(name=name, node={"defaults": [f"{name}_schema", "_self_", "common"]})
