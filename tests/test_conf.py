"""Everything in conf/ composes, is typed, and gives a model."""

import re

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException

from txl_lightning import TransformerXL
from txl_lightning.config import CONF, register_schemas, typed
from txl_lightning.training.models import make_model

register_schemas()
CHOICES = sorted(
    f"{path.parent.name}={path.stem}" for path in CONF.glob("*/*.yaml") if path.parent.name not in ("hydra",)
)


@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_of_every_group_composes_and_gives_a_model(choice: str) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = typed(compose("config", overrides=[choice]))
    with torch.device("meta"):
        model = make_model(config, vocab_size=1000)
    if isinstance(model, TransformerXL):
        assert model.config.mem_len == (0 if choice == "memory=off" else config.data.segment_len)


@pytest.mark.parametrize("override", ["model.layers=3", "optimizer.lrate=1", "nonsense=1", "memory=sometimes"])
def test_a_typo_is_an_error(override: str) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"), pytest.raises(Exception) as caught:  # noqa: PT011
        compose("config", overrides=[override])
    assert isinstance(caught.value, ConfigCompositionException) or "memory/sometimes" in str(caught.value)


@pytest.mark.parametrize("path", sorted(CONF.glob("experiment/*.yaml")), ids=lambda path: path.stem)
def test_every_experiment_says_what_it_is(path) -> None:
    heading = re.match(r"# @package _global_\n((?:#.*\n)+)", path.read_text())
    assert heading is not None
    for word in ("Command:", "Needs:", "Should give:", "Gave:"):
        assert word in heading[1]


def test_choices_on_the_command_line_beat_profile_and_experiment() -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = typed(compose("config", overrides=["profile=smoke", "model=txl_laptop", "memory.mem_len=7"]))
    assert (config.model.name, config.memory.mem_len, config.data.segment_len) == ("txl_laptop", 7, 32)
