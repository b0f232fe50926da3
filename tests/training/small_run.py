"""A run small enough to be trained many times in a test, and one that is trained once for all tests that read it."""

import atexit
import shutil
import tempfile
from copy import deepcopy
from functools import cache
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from txl_lightning.config.composition import register_schemas
from txl_lightning.config.schemas import CONF, Config, typed
from txl_lightning.training.run import train

TINY = (
    "profile=smoke",
    "data=file",
    "data.batch_size=4",
    "data.segment_len=8",
    "evaluation.batch_size=2",
    "evaluation.max_segments=null",
    "trainer.max_steps=12",
    "trainer.val_every_n_steps=5",
    "trainer.val_max_segments=40",
    "trainer.num_threads=1",
    "trainer.progress_bar=false",
    "logger=none",
)


TEXT = "".join(f"line {i}: the square of {i} is {i * i}\n" for i in range(60))


def tiny_config(directory: Path, *overrides: str) -> Config:
    """Return a configuration composed as `txl train` does, on a small text in `directory`."""
    text = directory / "text.txt"
    if not text.exists():
        text.write_text(TEXT)
    config = deepcopy(_composed(overrides))
    if config.data.path == "TEXT":
        config.data.path = str(text) if config.data.name == "file" else None
    if config.data.cache_dir == "CACHE":
        config.data.cache_dir = str(directory / "cache")
    return config


@cache
def trained(*overrides: str) -> Path:
    """Train once in this process, and return the folder of text and run directory, `run`; tests only read it."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    train(tiny_config(folder, *overrides), folder / "run")
    return folder


@cache
def _composed(overrides: tuple[str, ...]) -> Config:
    """Return Hydra's composition; values are set in the composition of the groups, which takes a fifth of the time."""
    groups = tuple(word for word in overrides if "." not in word.split("=")[0] and word[0] not in "+~")
    config = deepcopy(_groups(groups))
    for override in OverridesParser.create().parse_overrides([word for word in overrides if word not in groups]):
        OmegaConf.update(config, override.key_or_group, override.value())
    return typed(config)


@cache
def _groups(overrides: tuple[str, ...]) -> DictConfig:
    register_schemas()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", overrides=[*TINY, "data.path=TEXT", "data.cache_dir=CACHE", *overrides])
