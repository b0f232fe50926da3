"""Train arms through `torch.compile`, in a process without checks of shapes, which are no part of the graphs.

compiled_steps ARM…        prints as JSON the number of graphs of each arm, or the error of a recompilation
compiled_steps ARM/N…      the same with the streams in N groups, of unequal sizes where N does not divide them
"""

from __future__ import annotations

import json
import sys

import torch
from torch._dynamo.utils import counters

from tests.devices.arms import B, T, prepared
from tests.training.small_run import add_gradients
from txl_lightning.data.streams import Batch
from txl_lightning.training.scoring import compiled

STEPS = 20


def segment(number: int) -> Batch:
    """Each segment has other numbers of targets in the clusters."""
    window = torch.randint(
        30,
        (B, T + 1),
        generator=torch.Generator().manual_seed(number),
    )
    return Batch(
        window[:, :-1],
        window[:, 1:],
        number,
        known_targets=window[:, 1:].numpy(),
    )


def train(arm: str) -> int | str:
    """Do 20 steps and return the number of graphs, or the error if a step after the first one compiles again."""
    torch._dynamo.reset()
    counters.clear()
    name, _, n = arm.partition("/")
    module, optimizer = prepared(
        name,
        segment(0),
        n_groups=int(n or 1),
    )
    module.score = compiled(module.model.score, backend="aot_eager")
    for number in range(1, STEPS + 1):
        with torch._dynamo.config.patch(error_on_recompile=number > 1):
            optimizer.zero_grad()
            try:
                add_gradients(module, segment(number), int(n or 1))
            except torch._dynamo.exc.RecompileError as error:
                return f"step {number}: {str(error).splitlines()[0]}"
            optimizer.step()
    return int(counters["stats"]["unique_graphs"])


def main() -> None:
    """Train the arms that the command line names."""
    print(json.dumps({arm: train(arm) for arm in sys.argv[1:]}))
