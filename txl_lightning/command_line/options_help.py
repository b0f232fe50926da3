"""Text of `txl COMMAND --help`: usage, groups with their choices, and all options with their defaults.

Hydra's own help composes its configuration again for every group, which takes seconds.
"""

from __future__ import annotations

import hydra
from omegaconf import OmegaConf, open_dict

from txl_lightning.command_line.row import Command
from txl_lightning.config.schemas import CONF


def options_help(command: Command, overrides: list[str]) -> str:
    """Return the help text of a command; the options have the values that `overrides` would set.

    Raises:
        HydraException: an override is not usable.
    """
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        config = hydra.compose(command.config_name, overrides=overrides, return_hydra_config=True)
    groups = [group for group in config.hydra.runtime.choices if (CONF / group).is_dir() and "hydra" not in group]
    with open_dict(config):
        del config["hydra"]
    lines = [f"usage: txl {command.usage} [group=choice …] [key=value …]", "", command.summary, ""]
    if groups:
        choices = [f"  {group}: {', '.join(_choices(group, command.name))}" for group in sorted(groups)]
        lines += ["groups, as group=choice:", *choices, ""]
    options = "options, as group.key=value or key=value; ??? must be given:"
    return "\n".join([*lines, options, "", OmegaConf.to_yaml(config)])


def _choices(group: str, command: str) -> list[str]:
    """Return the names of a group's files; experiments in `published/` are for `txl evaluate`, others for training."""
    folder = CONF / group
    names = sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))
    of_evaluation = command == "evaluate"
    return [name for name in names if group != "experiment" or name.startswith("published/") == of_evaluation]
