"""`txl COMMAND --help`: every option with its meaning, from its dataclass's docstring."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from omegaconf import OmegaConf

from txl_lightning.config.architecture import TransformerXLConfig

ENTRY = re.compile(r"^    (\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)  # in a docstring's list
OPTION = re.compile(r"( *)(\w+):")  # in a YAML config
VARIANT = re.compile(r"^variant:\n  name: (\w+)$", re.MULTILINE)
BEFORE_OPTIONS = "== Config =="  # Hydra's heading
COLUMN = 36
SCHEMAS = re.compile(r"\b[\w-]*schema\b, |, [\w-]*schema\b(?!,)")  # in a list of choices


def meanings(kind: type, prefix: str = "") -> dict[str, str]:
    """Return each option's meaning: the first sentence of its entry, or an empty text.

    Args:
        kind: dataclass; its docstring and its parents' list the options.
        prefix: its group's name with a dot.
    """
    sentences = {}
    for base in reversed(kind.__mro__):
        for name, text in ENTRY.findall(inspect.getdoc(base) or ""):
            sentence, _, _ = " ".join(text.split()).partition(". ")
            sentences[name] = sentence.rstrip(".")
    found = {}
    for field in fields(kind):
        nested: Any = field.default_factory
        if isinstance(nested, type) and is_dataclass(nested):
            found.update(meanings(nested, f"{prefix}{field.name}."))
        else:
            found[prefix + field.name] = sentences.get(field.name, "")
    return found


def option_meanings(
    options: type,
    schemas: Mapping[str, Any],
    variant: str = "",
) -> dict[str, str]:
    """Return the meanings of a command's options by dotted name.

    Args:
        options: the command's dataclass.
        schemas: what Hydra composes for `GROUP/NAME`.
        variant: the chosen model variant; empty for none.
    """
    found: dict[str, str] = {}
    for path, schema in schemas.items():
        group, _, name = path.partition("/")
        kind = OmegaConf.get_type(schema)
        if name and is_dataclass(kind):
            found.update(meanings(kind, f"{group}."))
    if variant:
        from txl_lightning.model.transformer_xl import VARIANTS  # imports torch

        core = meanings(TransformerXLConfig)
        for name, meaning in meanings(VARIANTS.named(variant).config_class).items():
            if name not in core:
                found[f"variant.{name}"] = meaning
        found["variant.name"] = "variant of the model"
    found.update(meanings(options))
    return found


def explained(help_text: str, options: type, schemas: Mapping[str, Any]) -> str:
    """Return Hydra's help with meanings as comments, and without schemas among the group choices."""
    choices, heading, config = help_text.partition(BEFORE_OPTIONS)
    variant = VARIANT.search(config)
    meaning = option_meanings(options, schemas, variant[1] if variant else "")
    lines = []
    path: list[str] = []
    for line in config.split("\n"):
        option = OPTION.match(line)
        if option:
            depth = len(option[1]) // 2
            path[depth:] = [option[2]]
            text = meaning.get(".".join(path))
            if text:
                line = f"{line:{COLUMN}}  # {text}"
        lines.append(line)
    return SCHEMAS.sub("", choices) + heading + "\n".join(lines)
