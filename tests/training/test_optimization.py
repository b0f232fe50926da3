"""The paper's optimizer and schedule."""

import math
from dataclasses import replace

import pytest
import torch

from txl_lightning.config.schemas import OptimizerConfig
from txl_lightning.errors import OptionError
from txl_lightning.training.optimization import check_optimizer, learning_rate, make_optimizer

ADAM = OptimizerConfig(name="adam", lr=0.4)


def test_the_cosine_counts_from_step_zero_and_ends_at_zero() -> None:
    config = replace(ADAM, warmup_steps=10)
    assert [learning_rate(config, step, 100) for step in (0, 5)] == [0.0, 0.2]
    assert learning_rate(config, 10, 100) == pytest.approx(0.2 * (1 + math.cos(math.pi * 0.1)))
    assert learning_rate(config, 50, 100) == pytest.approx(0.2)
    assert learning_rate(config, 100, 100) == pytest.approx(0.0)
    assert learning_rate(config, 150, 100) == pytest.approx(0.0)


def test_the_tensorflow_codes_cosine_counts_from_the_end_of_the_warm_up_and_has_a_floor() -> None:
    config = replace(ADAM, warmup_steps=20, decay_after_warmup=True, min_lr=0.004)
    assert learning_rate(config, 20, 120) == pytest.approx(0.4)
    assert learning_rate(config, 70, 120) == pytest.approx(0.202)
    assert learning_rate(config, 120, 120) == pytest.approx(0.004)


def test_a_floor_and_a_constant() -> None:
    assert learning_rate(replace(ADAM, min_lr=0.1), 100, 100) == pytest.approx(0.1)
    assert learning_rate(replace(ADAM, schedule="constant"), 99, 100) == 0.4


@pytest.mark.parametrize(("name", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
def test_the_schedule_drives_the_optimizer(name: str, kind: type) -> None:
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(3))])
    parameter = model[0]
    optimizer, schedule = make_optimizer(model, replace(ADAM, name=name), max_steps=4, fused=True)
    assert type(optimizer) is kind
    rates = []
    for _ in range(4):
        rates.append(optimizer.param_groups[0]["lr"])
        parameter.sum().backward()
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx([learning_rate(ADAM, step, 4) for step in range(4)])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "sgd"),
        ("lr", 0.0),
        ("eps", 0.0),
        ("warmup_steps", -1),
        ("min_lr", 1.0),
        ("clip_norm", -1.0),
        ("schedule", "step"),
        ("split_qkv", False),
        ("ns_precision", "16-true"),
        ("ns_precision", "32-true"),
    ],
)
def test_bad_options_are_named(field: str, value: object) -> None:
    with pytest.raises(OptionError, match=f"optimizer.*={value}"):
        check_optimizer(replace(ADAM, **{field: value}))
