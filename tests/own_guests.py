"""The registries of a new process, for tests that import a user's files."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra.core.config_store import ConfigStore

from txl_lightning.config.architecture import KINDS
from txl_lightning.config.schemas import SCHEMAS
from txl_lightning.data import corpus  # noqa: F401 - registers the corpora
from txl_lightning.data.sources import CORPORA, LEVELS_OF
from txl_lightning.model.encodings import ENCODINGS
from txl_lightning.model.transformer_xl import VARIANTS
from txl_lightning.registry import CHOICES, COMMANDS, OWN, VARIABLE

for variant in (Path(__file__).parents[1] / "txl_lightning/variants").glob("[!_]*.py"):
    VARIANTS.named(variant.stem)
REGISTRIES: tuple[Any, ...] = (
    KINDS,
    ENCODINGS,
    VARIANTS,
    CORPORA,
    LEVELS_OF,
    SCHEMAS,
    CHOICES,
    COMMANDS,
)
BUILT_IN = [set(registry) for registry in REGISTRIES]


def forget_guests() -> None:
    """Return to the registries of a new process."""
    _forget_configs()
    for registry, built_in in zip(REGISTRIES, BUILT_IN, strict=True):
        for name in set(registry) - built_in:
            del registry[name]
    for module in list(sys.modules):
        if module.startswith(OWN):
            del sys.modules[module]


def _forget_configs() -> None:
    *_, built_in_choices, built_in_commands = BUILT_IN
    store = ConfigStore.instance().repo
    for choice in set(CHOICES) - built_in_choices:
        group, _, name = choice.partition("/")
        choices = store.get(group, {})
        choices.pop(f"{name}.yaml", None)
        choices.pop(f"{name}_schema.yaml", None)
    for name in set(COMMANDS) - built_in_commands:
        store.pop(f"{name}.yaml", None)
        store.pop(f"{name}_schema.yaml", None)


@pytest.fixture
def no_guests(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Begin and end as a new process without the variable."""
    monkeypatch.delenv(VARIABLE, raising=False)
    yield
    forget_guests()
