"""`txl evaluate` on a short run, in this process, and its values computed again from the losses of single tokens."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.evaluation.small_runs import SmallRuns
from tests.training.small_run import evaluated

BLOCK_LEN = 20


def result(runs: SmallRuns, kind: str, directory: Path, **options: Any) -> dict[str, Any]:
    """Return `evaluation.json`; scores the test split unless `options` has others."""
    options.setdefault("splits", ["test"])
    return evaluated(
        runs.checkpoint(kind),
        directory,
        block_len=BLOCK_LEN,
        **options,
    )


def losses(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return nll and positions of a file that `losses=true` wrote."""
    with np.load(path) as file:
        return file["nll"], file["positions"]


def by_blocks(nll: np.ndarray, positions: np.ndarray, length: int = BLOCK_LEN) -> tuple[float, int]:
    """Return the standard error of the mean over blocks of the text, and their number."""
    blocks = positions // length
    deviations_P = nll.astype(float) - nll.mean(dtype=float)
    squares = []
    for block in np.unique(blocks):
        in_block = deviations_P[blocks == block]
        squares.append(float(in_block.sum()) ** 2)
    U = len(squares)
    return math.sqrt(U / (U - 1) * sum(squares)) / len(nll), U


@torch.no_grad()
def losses_alone(model: Any, text_1n: torch.Tensor, segment_len: int, ext_len: int) -> list[float]:
    """Return the losses of one stream in nats, read in segments by a plain loop."""
    losses: list[float] = []
    memory = None
    for start in range(0, text_1n.shape[1] - 1, segment_len):
        targets_1T = text_1n[:, start + 1 : start + 1 + segment_len]
        window = text_1n[:, max(0, start - ext_len) : start + targets_1T.shape[1]]
        nll_1T, memory = model.score(window, targets_1T, memory)
        losses += nll_1T[0].tolist()
    return losses
