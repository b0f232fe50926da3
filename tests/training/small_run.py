"""A run small enough to be trained many times in a test."""

from copy import deepcopy
from functools import cache
from pathlib import Path

from hydra import compose, initialize_config_dir

from txl_lightning.config.composition import register_schemas
from txl_lightning.config.schemas import CONF, Config, typed

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


def tiny_config(directory: Path, *overrides: str) -> Config:
    """Return a configuration composed as `txl train` does, on a small text in `directory`."""
    text = directory / "text.txt"
    if not text.exists():
        text.write_text("".join(f"line {i}: the square of {i} is {i * i}\n" for i in range(60)))
    config = deepcopy(_composed(overrides))
    if config.data.path == "TEXT":
        config.data.path = str(text) if config.data.name == "file" else None
    if config.data.cache_dir == "CACHE":
        config.data.cache_dir = str(directory / "cache")
    return config


@cache
def _composed(overrides: tuple[str, ...]) -> Config:
    """Compose once for all tests of this process: composing takes longer than many of them."""
    register_schemas()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return typed(compose("config", overrides=[*TINY, "data.path=TEXT", "data.cache_dir=CACHE", *overrides]))
