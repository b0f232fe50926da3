"""Every sweep file: parsed, composed, and its first arm trained."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args

from tests.alone import printed
from tests.docs.pages import ROOT
from tests.training.small_run import TINY, tiny_config
from txl_lightning.application import register
from txl_lightning.config.schemas import CONF, Config, typed
from txl_lightning.training.checks import check_config
from txl_lightning.training.loggers import run_name

SWEEPS = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((ROOT / "sweeps").glob("*.yaml"))}
README = (ROOT / "sweeps/README.md").read_text()
register()


def arms(sweep: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the arms of a grid in W&B's order."""
    values = [parameter["values"] for parameter in sweep["parameters"].values()]
    return [dict(zip(sweep["parameters"], row, strict=True)) for row in itertools.product(*values)]


def overrides(sweep: dict[str, Any], chosen: dict[str, Any]) -> list[str]:
    """Return the overrides of the `txl train` command that W&B's agent runs."""
    words = create_sweep_command(list(sweep["command"]))
    given = create_sweep_command_args({"args": {name: {"value": value} for name, value in chosen.items()}})
    macros = {"${env}": ["/usr/bin/env"], "${program}": [sweep["program"]]}
    macros["${args_no_hyphens}"] = given["args_no_hyphens"]
    command = [word for chunk in words for word in macros.get(chunk, [chunk])]
    assert command[:3] == ["/usr/bin/env", "txl", "train"]
    return command[3:]


def untyped(words: list[str]) -> DictConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", overrides=[word for word in words if not word.startswith("hydra.")])


def all_arms(sweep: dict[str, Any]) -> Iterator[Config]:
    """Every arm, composed once: only values differ, and the typed configuration checks each."""
    config = untyped(overrides(sweep, {}))
    for chosen in arms(sweep):
        for name, value in chosen.items():
            OmegaConf.update(config, name, value)
        check_config(typed(config))
        yield typed(config)


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_file_has_what_wandb_wants_and_arms_that_compose_with_names_of_their_own(name: str) -> None:
    sweep, text = SWEEPS[name], (ROOT / "sweeps" / f"{name}.yaml").read_text()
    assert sweep["metric"] == {"name": "final/val/nll", "goal": "minimize"}
    assert f"[{name}.yaml]({name}.yaml)" in README
    assert f"Costs: {len(arms(sweep))} runs" in text
    configs = list(all_arms(sweep))
    assert len({run_name(config) for config in configs}) == len(configs)
    assert {config.logger.mode for config in configs} == {"online"}  # an agent's runs report to its sweep
    assert len({config.logger.group for config in configs}) == 1


@pytest.mark.slow
def test_an_agents_command_trains_into_a_folder_of_its_own(tmp_path: Path) -> None:
    sweep = SWEEPS["learning_rate"]
    tiny_config(tmp_path)  # writes the text
    paths = [f"data.path={tmp_path / 'text.txt'}", f"data.cache_dir={tmp_path / 'cache'}", "memory.mem_len=8"]
    words = [*overrides(sweep, arms(sweep)[0]), *TINY, *paths, "trainer.max_steps=2"]
    variables = {"WANDB_SWEEP_ID": "sweep1", "WANDB_RUN_ID": "run1"}
    printed("-m", "txl_lightning.cli", "train", *words, directory=tmp_path, **variables)
    assert (tmp_path / "outputs/sweeps/sweep1/run1/metrics.json").exists()
