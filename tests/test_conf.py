"""Every config in conf/ composes, is typed, and describes a model."""

import re
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hydra
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from txl_lightning import TransformerXL
from txl_lightning.application import compose as compose_train
from txl_lightning.application import register
from txl_lightning.config.schemas import CONF, Config
from txl_lightning.errors import OptionError
from txl_lightning.evaluation.models import Model, make_model
from txl_lightning.registry import COMMANDS
from txl_lightning.training.loggers import lightning_loggers
from txl_lightning.training.optimizers import make_optimizer
from txl_lightning.training.run import own_callbacks

register()


def choices(group: str) -> list[str]:
    """Return the choices of a group, with their folders."""
    names = []
    for path in sorted((CONF / group).rglob("*.yaml")):
        names.append(path.relative_to(CONF / group).with_suffix("").as_posix())
    return names


PUBLISHED = [name for name in choices("experiment") if name.startswith("published/")]
EXPERIMENTS = [name for name in choices("experiment") if name not in PUBLISHED]
OF_THE_PAPER = [name for name in EXPERIMENTS if name.startswith("paper/")]
GROUPS = ("data", "encoding", "logger", "model", "optimizer", "trainer")
WIKITEXT = 267_735
BYTES = 205

composed = cache(compose_train)


def model_of(config: Config, vocab_size: int = 800_000) -> Model:
    """Return the model of a config, without memory for its weights."""
    with torch.device("meta"):
        return make_model(config, vocab_size)


def choices_side_by_side() -> list[tuple[str, ...]]:
    """Return every choice of every group at least once, with choices of the other groups."""
    columns = [choices(group) for group in GROUPS]
    rows = []
    for row in range(max(len(column) for column in columns)):
        words = []
        for group, column in zip(GROUPS, columns, strict=True):
            words.append(f"{group}={column[row % len(column)]}")
        rows.append(tuple(words))
    return rows


@pytest.mark.parametrize("words", choices_side_by_side(), ids=" ".join)
def test_every_choice_of_every_group_composes_and_gives_a_model(words: tuple[str, ...]) -> None:
    config = composed(*words)
    model = model_of(config)
    if isinstance(model, TransformerXL):
        assert config.memory.segments
        assert model.config.mem_len == config.memory.segments * config.data.segment_len


@pytest.mark.parametrize(
    ("words", "mem_len"),
    [
        (["data.segment_len=48"], 48),
        (["memory.segments=3"], 192),
        (["memory=on", "memory.mem_len=40"], 40),
        (["memory=off", "memory.segments=3"], 0),
    ],
)
def test_memory_follows_the_segment_unless_it_is_given(words: list[str], mem_len: int) -> None:
    assert composed(*words).memory.mem_len == mem_len


def names_of(made: list[Any], package: str) -> list[str]:
    """Return the classes of objects of Lightning as `_target_` names them."""
    return [f"lightning.pytorch.{package}.{type(one).__name__}" for one in made]


@pytest.mark.parametrize("name", choices("callbacks"))
def test_every_choice_of_callbacks_makes_its_class(name: str, tmp_path: Path) -> None:
    config = composed(f"callbacks={name}")
    classes = [given["_target_"] for given in config.callbacks.values()]
    assert names_of(own_callbacks(config, tmp_path), "callbacks") == classes
    assert bool(classes) == (name != "none")


@pytest.mark.parametrize("name", choices("logger"))
def test_every_choice_of_logger_makes_its_class(name: str, tmp_path: Path) -> None:
    config = composed(f"logger={name}")
    if name in ("tensorboard", "mlflow") and find_spec(name) is None:
        said = rf"logger\.{name}=.* cannot be made: ModuleNotFoundError: .*{name}"
        with pytest.raises(OptionError, match=said):
            lightning_loggers(config, tmp_path)
        return
    # tests/training/test_wandb_run.py starts W&B.
    classes = [given["_target_"] for given in config.logger.each.values() if given]
    assert names_of(lightning_loggers(config, tmp_path), "loggers") == classes
    assert list(config.logger.each) == ([] if name == "none" else [name])


@pytest.mark.parametrize("name", choices("optimizer"))
def test_every_choice_of_optimizer_makes_its_class(name: str) -> None:
    config = composed(f"optimizer={name}", "profile=smoke", "model=txl_smoke")
    model: Any = model_of(config, vocab_size=8)
    optimizer, schedule = make_optimizer(model, config.optimizer, max_steps=10, fused=False)
    assert type(optimizer).__name__.lower().startswith(name)
    assert schedule.optimizer is optimizer


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_composes_and_gives_a_model(name: str) -> None:
    model_of(composed(f"experiment={name}"))


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_model_is_evaluated_at_the_lengths_of_its_experiment(name: str) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        published = compose("evaluate", overrides=[f"experiment={name}", "checkpoint=a.ckpt"])
    assert published.splits == ["test"]
    assert published.batch_size == 16
    paper = composed(f"experiment={name.replace('published', 'paper')}").evaluation
    for length in ("segment_len", "mem_len", "same_length", "clamp_len"):
        assert published[length] == getattr(paper, length)


@pytest.mark.parametrize("folder", ["experiment", "profile"])
def test_every_file_says_what_it_is(folder: str) -> None:
    """The YAML begins with: table and row, the command, what it needs, should give, and gave here."""
    for path in (CONF / folder).rglob("*.yaml"):
        heading = re.match(r"# @package _global_\n((?:#.*\n)+)", path.read_text())
        assert heading is not None, path
        assert re.match(r"#.*[Tt]able", heading[1]), path
        words = re.findall(r"^# (Command|Needs|Should give|Gave): \S", heading[1], re.MULTILINE)
        assert words == ["Command", "Needs", "Should give", "Gave"], path


def test_every_command_has_the_common_settings_of_hydra() -> None:
    for command in COMMANDS:
        assert "common" in OmegaConf.load(CONF / f"{command}.yaml").defaults


@pytest.mark.parametrize(
    ("vocab_size", "choice", "size", "within"),
    [
        # The 16-layer model with the paper's vocabulary and u, v shared. The figure 151,123,537 that is quoted
        # for it belongs to 267,744 types (a dictionary padded to a multiple of 8) and u, v per layer.
        (WIKITEXT, "model=txl_wt103_base", 151_107_538, 0),
        (267_744, "model=txl_wt103_base model.untie_biases=true", 151_123_537, 0),
        (793_471, "model=txl_lm1b_table7", 301_205_362, 0),
        (BYTES, "model=txl_enwik8_base", 41_055_949, 0),
        (WIKITEXT, "profile=gpu", 60_292_242, 0),  # as conf/model/txl_gpu.yaml says
        # As the paper rounds them.
        (
            WIKITEXT,
            "model=txl_wt103_large",
            257e6,
            0.12,
        ),  # the same sizes in Hugging Face's class are 285M too
        (WIKITEXT, "model=txl_wt103_128m", 128e6, 0.01),
        (BYTES, "model=txl_enwik8_18l", 88e6, 0.01),
        (BYTES, "model=txl_enwik8_large", 277e6, 0.01),
        (793_471, "model=txl_lm1b_base_paper", 0.46e9, 0.03),
        (793_471, "model=txl_lm1b_large", 0.8e9, 0.06),
    ],
)
def test_known_sizes(vocab_size: int, choice: str, size: float, within: float) -> None:
    model = model_of(composed(*choice.split()), vocab_size)
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    assert n_parameters == pytest.approx(size, rel=within, abs=0)


def test_choices_on_the_command_line_beat_the_profile() -> None:
    config = composed("profile=smoke", "model=txl_laptop", "memory.mem_len=7")
    assert config.model.name == "txl_laptop"
    assert config.memory.mem_len == 7
    assert config.data.segment_len == 32


def test_the_paper_profile_is_table_6_on_several_gpus() -> None:
    profile = composed("profile=paper")
    experiment = composed("experiment=paper/table6")
    assert profile.trainer == replace(experiment.trainer, devices=2)
    assert profile.logger.group is None
    assert replace(profile, trainer=experiment.trainer, logger=experiment.logger) == experiment


@pytest.mark.parametrize("name", OF_THE_PAPER)
def test_a_published_experiment_takes_nothing_of_the_laptop_profiles_recipe(name: str) -> None:
    config = composed(f"experiment={name}")
    assert config.optimizer.name == "adam"
    assert config.optimizer.clip_norm == 0.25
    assert config.optimizer.schedule == "cosine"
    assert config.trainer.precision == "bf16-mixed"
    assert config.trainer.num_threads is None
    assert config.memory.mem_len == config.data.segment_len


@pytest.mark.parametrize("name", OF_THE_PAPER)
def test_large_models_follow_the_tensorflow_code(name: str) -> None:
    config = composed(f"experiment={name}")
    is_large = config.model.init_std != 0.02
    assert config.optimizer.decay_after_warmup == is_large
    assert (config.memory.start == "zeros") == is_large
    min_lr = config.optimizer.lr / 100 if is_large else 0.0
    assert config.optimizer.min_lr == pytest.approx(min_lr)


def test_a_program_that_uses_hydra_composes_too() -> None:
    with hydra.initialize(version_base="1.3", config_path=None):
        outer = GlobalHydra.instance().hydra
        assert compose_train("model.n_layer=3").model.n_layer == 3
        assert GlobalHydra.instance().hydra is outer
