"""Every sweep file and every one-liner beside it: parsed, composed, and its first arm trained."""

import itertools
from collections.abc import Iterator
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

SWEEPS = {
    path.stem: yaml.safe_load(path.read_text()) for path in sorted((ROOT / "sweeps").glob("*.yaml"))
}
PAGE = ROOT / "sweeps/README.md"
ONE_LINERS = [words[3:] for words in commands([PAGE]) if words[1] == "train"]
MULTIRUNS = dict(
    zip(
        ("table_6", "terms", "memory_by_segment", "learning_rate", "search"),
        ONE_LINERS,
        strict=True,
    )
)
register()


def arms(sweep: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the arms of a grid in W&B's order."""
    values = [parameter["values"] for parameter in sweep["parameters"].values()]
    return [dict(zip(sweep["parameters"], row, strict=True)) for row in itertools.product(*values)]


def overrides(sweep: dict[str, Any], chosen: dict[str, Any]) -> list[str]:
    """Return the overrides of the `txl train` command that W&B's agent runs."""
    words = create_sweep_command(list(sweep["command"]))
    given = create_sweep_command_args(
        {"args": {name: {"value": value} for name, value in chosen.items()}}
    )
    macros = {"${env}": ["/usr/bin/env"], "${program}": [sweep["program"]]}
    macros["${args_no_hyphens}"] = given["args_no_hyphens"]
    command = [word for chunk in words for word in macros.get(chunk, [chunk])]
    assert command[:3] == ["/usr/bin/env", "txl", "train"]
    return command[3:]


def multirun_arms(words: list[str]) -> list[list[str]]:
    """Return the overrides of each job of a multirun."""
    parsed = OverridesParser.create().parse_overrides(words)
    swept = [o for o in parsed if o.is_sweep_override()]
    sweeps = [
        [f"{o.get_key_element()}={value}" for value in o.sweep_string_iterator()] for o in swept
    ]
    fixed = [o.input_line for o in parsed if not o.is_sweep_override()]
    return [[*fixed, *row] for row in itertools.product(*sweeps)]


def untyped(words: list[str]) -> DictConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose(
            "config", overrides=[word for word in words if not word.startswith("hydra.")]
        )


def composed(words: list[str]) -> Config:
    config = typed(untyped(words))
    check_config(config)
    return config


def all_arms(sweep: dict[str, Any]) -> Iterator[Config]:
    """Every arm, composed once: only values differ, and the typed configuration checks each."""
    config = untyped(overrides(sweep, {}))
    for chosen in arms(sweep):
        for name, value in chosen.items():
            OmegaConf.update(config, name, value)
        check_config(typed(config))
        yield typed(config)


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_file_has_what_wandb_wants_and_arms_that_compose_with_names_of_their_own(
    name: str,
) -> None:
    sweep, text = SWEEPS[name], (ROOT / "sweeps" / f"{name}.yaml").read_text()
    assert sweep["metric"] == {"name": "final/val/nll", "goal": "minimize"}
    assert f"[{name}.yaml]({name}.yaml)" in PAGE.read_text()
    assert f"Costs: {len(arms(sweep))} runs" in text
    configs = list(all_arms(sweep))
    assert len({run_name(config) for config in configs}) == len(configs)
    assert {config.logger.mode for config in configs} == {
        "online"
    }  # an agent's runs report to its sweep
    assert len({config.logger.group for config in configs}) == 1


@pytest.mark.parametrize("name", SWEEPS)
def test_the_one_liner_has_the_same_arms(name: str) -> None:
    jobs, grid = multirun_arms(MULTIRUNS[name]), arms(SWEEPS[name])
    assert len(jobs) == len(grid)
    for job, chosen in ((jobs[0], grid[0]), (jobs[-1], grid[-1])):
        ours, theirs = composed(job), composed(overrides(SWEEPS[name], chosen))
        assert (ours.logger.mode, theirs.logger.mode) == ("offline", "online")
        ours.logger.mode = theirs.logger.mode
        assert ours.encoding.name == theirs.encoding.name  # the group of a table has its length too
        assert replace(ours, encoding=theirs.encoding) == theirs


@pytest.mark.slow
def test_an_agents_command_trains_into_a_folder_of_its_own(tmp_path: Path) -> None:
    sweep = SWEEPS["learning_rate"]
    tiny_config(tmp_path)  # writes the text
    paths = [
        f"data.path={tmp_path / 'text.txt'}",
        f"data.cache_dir={tmp_path / 'cache'}",
        "memory.mem_len=8",
    ]
    words = [*overrides(sweep, arms(sweep)[0]), *TINY, *paths, "trainer.max_steps=2"]
    variables = {"WANDB_SWEEP_ID": "sweep1", "WANDB_RUN_ID": "run1"}
    printed("-m", "txl_lightning.cli", "train", *words, directory=tmp_path, **variables)
    assert (tmp_path / "outputs/sweeps/sweep1/run1/metrics.json").exists()
