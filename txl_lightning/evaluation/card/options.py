"""Options of `txl card`."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING


@dataclass
class CardOptions:
    """Options of `txl card`: a model card of a checkpoint.

    Args:
        checkpoint: checkpoint of `txl train` to describe.
        name: name of the model; null for that of the run's folder.
        license: licence of the weights, as model hubs abbreviate it: mit, apache-2.0, cc-by-4.0, …
        accelerator: cpu or gpu.
        num_threads: CPU threads; null for as many as training such a model pays for.
    """

    checkpoint: str = MISSING
    name: str | None = None
    license: str = "unknown"
    accelerator: str = "cpu"
    num_threads: int | None = None
