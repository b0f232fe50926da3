"""Cost of checkpoints: the same training steps with and without them, in turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir

from txl_lightning.config.composition import register_schemas
from txl_lightning.config.schemas import CONF, typed
from txl_lightning.training.run import train

OPTIONS = (
    "model=txl_laptop",
    "data.batch_size=16",
    "data.segment_len=64",
    "optimizer.lr=1e-3",
    "logger=none",
    "trainer.progress_bar=false",
    "trainer.val_every_n_steps=null",
    "trainer.num_threads=2",
    "evaluation.max_segments=1",
)
EVERY, STEPS = 50, 100


def checkpoint_cost(
    scratch: Path, rounds: int, *overrides: str, every: int = EVERY, steps: int = STEPS
) -> dict[str, Any]:
    """Time training steps with a checkpoint every `every` steps and without, `rounds` times each.

    Seconds are those of `metrics.json`: first step to last, with the final checkpoint, without start and evaluation.

    Returns:
        `with` and `without` (seconds of each round), `every`, `steps`, and the `bytes` of a checkpoint.
    """
    register_schemas()
    seconds: dict[bool, list[float]] = {True: [], False: []}
    with initialize_config_dir(str(CONF), version_base="1.3"):
        for i in range(rounds):
            for saves in (True, False) if i % 2 else (False, True):
                options = (f"checkpoint.enabled={saves}", f"checkpoint.every_n_steps={every}")
                config = typed(
                    compose("config", overrides=[*OPTIONS, *options, f"trainer.max_steps={steps}", *overrides])
                )
                seconds[saves].append(train(config, scratch / f"checkpoints-{i}-{saves}")["seconds"])
    size = (scratch / "checkpoints-0-True" / "checkpoints" / "last.ckpt").stat().st_size
    return {"with": seconds[True], "without": seconds[False], "every": every, "steps": steps, "bytes": size}
