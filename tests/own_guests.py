"""The registries of a new process, for tests that import a user's files."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra.core.config_store import ConfigStore

from txl_lightning.commands import COMMANDS
from txl_lightning.config.architecture import KINDS
from txl_lightning.config.schemas import OWN_OPTIONS
from txl_lightning.data import corpus  # noqa: F401 - registers the corpora
from txl_lightning.data.formats import FORMATS
from txl_lightning.data.sources import CORPORA, LEVELS_OF
from txl_lightning.model.encodings import ENCODINGS
from txl_lightning.model.transformer_xl import VARIANTS
from txl_lightning.registry import CHOICES, OWN, VARIABLES

for path in (Path(__file__).parents[1] / "txl_lightning/variants").glob("[!_]*.py"):
    VARIANTS.named(path.stem)
REGISTRIES: tuple[Any, ...] = (KINDS, ENCODINGS, VARIANTS, CORPORA, LEVELS_OF, OWN_OPTIONS, CHOICES, COMMANDS)
BUILT_IN, FORMATS_BUILT_IN = [dict(registry) for registry in REGISTRIES], list(FORMATS)


def forget_guests() -> None:
    """Return to the registries of a new process."""
    store, (*_, choices, commands) = ConfigStore.instance().repo, BUILT_IN
    for group, name in [*(CHOICES.keys() - choices), *(("", name) for name in COMMANDS.keys() - commands)]:
        for file in (f"{name}.yaml", f"{name}_schema.yaml"):
            (store.get(group, {}) if group else store).pop(file, None)
    for registry, content in zip(REGISTRIES, BUILT_IN, strict=True):
        for name in registry.keys() - content:
            del registry[name]
    FORMATS[:] = FORMATS_BUILT_IN
    for name in [name for name in sys.modules if name.startswith(OWN)]:
        del sys.modules[name]


@pytest.fixture
def no_guests(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Begin and end as a new process without the variable."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    yield
    forget_guests()
