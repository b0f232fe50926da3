"""Text of `txl COMMAND --help`: usage, groups with their choices, and all options with their defaults.

Hydra's own help composes its configuration anew for every group, which takes seconds.
"""

from __future__ import annotations

from pathlib import Path

import hydra
from omegaconf import OmegaConf, open_dict

from txl_lightning.command_line.row import Command
from txl_lightning.config.schemas import CONF


def options_help(command: Command, overrides: list[str]) -> str:
    """Return the help text of a command, its options as `overrides` would set them.

    Raises:
        HydraException: an override is not usable.
    """
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        config = hydra.compose(command.config_name, overrides=overrides, return_hydra_config=True)
    groups = [group for group in config.hydra.runtime.choices if (CONF / group).is_dir() and "hydra" not in group]
    with open_dict(config):
        del config["hydra"]
    lines = [f"usage: txl {command.usage} [group=choice …] [key=value …]", "", command.summary, "", "groups:"]
    lines += [f"  {group}: {', '.join(_choices(CONF / group))}" for group in sorted(groups)]
    return "\n".join([*lines, "", "options, as group.key=value or key=value:", "", OmegaConf.to_yaml(config)])


def _choices(group: Path) -> list[str]:
    return sorted(path.relative_to(group).with_suffix("").as_posix() for path in group.rglob("*.yaml"))
