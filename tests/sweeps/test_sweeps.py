"""Every sweep file and every one-liner beside it: parsed, composed, and its first arm trained."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf
from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args

from tests.alone import printed
from tests.docs.pages import ROOT, commands
from tests.training.small_run import TINY, tiny_config
from txl_lightning.application import register
from txl_lightning.config.schemas import CONF, Config, typed
from txl_lightning.training.checks import check_config
from txl_lightning.training.loggers import run_name

PAGE = ROOT / "sweeps/README.md"
SWEEPS: dict[str, Any] = {}
for path in sorted((ROOT / "sweeps").glob("*.yaml")):
    SWEEPS[path.stem] = yaml.safe_load(path.read_text())
ONE_LINERS = [words[3:] for words in commands([PAGE]) if words[1] == "train"]
IN_ORDER = ("table_6", "terms", "memory_by_segment", "learning_rate", "search")
MULTIRUNS = dict(zip(IN_ORDER, ONE_LINERS, strict=True))
register()


def arms(sweep: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the arms of a grid in W&B's order."""
    names = sweep["parameters"]
    values = [parameter["values"] for parameter in names.values()]
    return [dict(zip(names, row, strict=True)) for row in itertools.product(*values)]


def overrides(sweep: dict[str, Any], arm: dict[str, Any]) -> list[str]:
    """Return the overrides of the `txl train` command that W&B's agent runs."""
    values = {name: {"value": value} for name, value in arm.items()}
    macros = create_sweep_command_args({"args": values})
    command = []
    for word in create_sweep_command(list(sweep["command"])):
        if word == "${args_no_hyphens}":
            command += macros["args_no_hyphens"]
        elif word == "${program}":
            command.append(sweep["program"])
        elif word != "${env}":
            command.append(word)
    assert command[:2] == ["txl", "train"]
    return command[2:]


def multirun_arms(words: list[str]) -> list[list[str]]:
    """Return the overrides of each job of a multirun."""
    fixed = []
    sweeps = []
    for override in OverridesParser.create().parse_overrides(words):
        if override.is_sweep_override():
            name = override.get_key_element()
            sweeps.append([f"{name}={value}" for value in override.sweep_string_iterator()])
        else:
            fixed.append(override.input_line)
    return [[*fixed, *row] for row in itertools.product(*sweeps)]


def untyped(words: list[str]) -> DictConfig:
    own = [word for word in words if not word.startswith("hydra.")]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("train", overrides=own)


def checked(config: DictConfig) -> Config:
    typed_config = typed(config)
    check_config(typed_config)
    return typed_config


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_file_has_what_wandb_wants_and_arms_with_names_of_their_own(name: str) -> None:
    sweep = SWEEPS[name]
    assert sweep["metric"] == {"name": "final/val/nll", "goal": "minimize"}
    assert f"[{name}.yaml]({name}.yaml)" in PAGE.read_text()
    text = (ROOT / "sweeps" / f"{name}.yaml").read_text()
    assert f"Costs: {len(arms(sweep))} runs" in text
    # Composed once: only values differ, and the typed configuration checks each.
    config = untyped(overrides(sweep, {}))
    names = set()
    groups = set()
    for arm in arms(sweep):
        for option, value in arm.items():
            OmegaConf.update(config, option, value)
        of_arm = checked(config)
        names.add(run_name(of_arm))
        groups.add(of_arm.logger.group)
        assert of_arm.logger.mode == "online"  # an agent's runs report to its sweep
    assert len(names) == len(arms(sweep))
    assert len(groups) == 1


@pytest.mark.parametrize("name", SWEEPS)
def test_the_one_liner_has_the_same_arms(name: str) -> None:
    jobs = multirun_arms(list(MULTIRUNS[name]))
    grid = arms(SWEEPS[name])
    assert len(jobs) == len(grid)
    for place in (0, -1):
        ours = checked(untyped(jobs[place]))
        theirs = checked(untyped(overrides(SWEEPS[name], grid[place])))
        assert ours.logger.mode == "offline"
        assert theirs.logger.mode == "online"
        ours.logger.mode = theirs.logger.mode
        assert ours.encoding.name == theirs.encoding.name
        # The group of a table has its length too.
        assert replace(ours, encoding=theirs.encoding) == theirs


@pytest.mark.slow
def test_an_agents_command_trains_into_a_folder_of_its_own(tmp_path: Path) -> None:
    sweep = SWEEPS["learning_rate"]
    tiny_config(tmp_path)  # writes the text
    words = [
        *overrides(sweep, arms(sweep)[0]),
        *TINY,
        f"data.path={tmp_path}/text.txt",
        f"data.cache_dir={tmp_path}/cache",
        "memory.mem_len=8",
        "trainer.max_steps=2",
    ]
    variables = {"WANDB_SWEEP_ID": "sweep1", "WANDB_RUN_ID": "run1"}
    printed("-m", "txl_lightning.cli", "train", *words, directory=tmp_path, **variables)
    assert (tmp_path / "outputs/sweeps/sweep1/run1/metrics.json").exists()
