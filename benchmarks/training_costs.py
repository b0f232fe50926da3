"""Cost of checkpoints and of validation: the same training steps with and without them, in turns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir

from txl_lightning.config.composition import register_schemas
from txl_lightning.config.schemas import CONF, typed
from txl_lightning.training.run import train

COMMON = ("logger=none", "trainer.progress_bar=false", "evaluation.max_segments=1")
CHECKPOINTS = (
    *("model=txl_laptop", "data.batch_size=16", "data.segment_len=64", "optimizer.lr=1e-3"),
    *("trainer.val_every_n_steps=null", "trainer.num_threads=2"),
)
EVERY, STEPS = 50, 100
WAYS = ("without", "with")
VALIDATED_EVERY, VALIDATED_STEPS = 25, 250  # ten times as often as profile=laptop, whose cost is within the noise


def checkpoint_cost(
    scratch: Path, rounds: int, *overrides: str, every: int = EVERY, steps: int = STEPS
) -> dict[str, Any]:
    """Time training steps with a checkpoint every `every` steps and without, `rounds` times each.

    Returns:
        `with` and `without` (seconds of each round), `every`, `steps`, and the `bytes` of a checkpoint.
    """
    ways = {name: (f"checkpoint.enabled={name == 'with'}", f"checkpoint.every_n_steps={every}") for name in WAYS}
    seconds = in_turns(scratch, rounds, ways, *CHECKPOINTS, f"trainer.max_steps={steps}", *overrides)
    size = (scratch / "with-0" / "checkpoints" / "last.ckpt").stat().st_size
    return {**seconds, "every": every, "steps": steps, "bytes": size}


def validation_cost(
    scratch: Path, rounds: int, *overrides: str, every: int = VALIDATED_EVERY, steps: int = VALIDATED_STEPS
) -> dict[str, Any]:
    """Time training steps of the laptop profile with a validation every `every` steps and without.

    Returns:
        `with` and `without` (seconds of each round), `every` and `steps`.
    """
    ways = {name: (f"trainer.val_every_n_steps={every if name == 'with' else 'null'}",) for name in WAYS}
    options = ("profile=laptop", "checkpoint.enabled=false", f"trainer.max_steps={steps}")
    return {**in_turns(scratch, rounds, ways, *options, *overrides), "every": every, "steps": steps}


def in_turns(scratch: Path, rounds: int, ways: Mapping[str, tuple[str, ...]], *options: str) -> dict[str, list[float]]:
    """Return the seconds of `metrics.json` of each round and way: first step to last, without start and evaluation."""
    register_schemas()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    with initialize_config_dir(str(CONF), version_base="1.3"):
        for i in range(rounds):
            for name in ways if i % 2 == 0 else reversed(ways):
                config = typed(compose("config", overrides=[*COMMON, *options, *ways[name]]))
                seconds[name].append(train(config, scratch / f"{name}-{i}")["seconds"])
    return seconds
