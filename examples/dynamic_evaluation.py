"""Dynamic evaluation (Krause et al. 2018, arXiv:1709.07432): after each segment is scored, the weights learn from it.

    export TXL_GUESTS=examples/dynamic_evaluation.py
    txl dynamic checkpoint=runs/first/checkpoints/best.ckpt lr=0.1

θ ← θ - η g by SGD, without decay; g is the gradient of the segment's mean loss. Choose η with `split=valid`, and
compare the loss with the one of `txl evaluate checkpoint=…`.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from txl_lightning.config.lengths import in_windows
from txl_lightning.evaluation.protocol import Protocol
from txl_lightning.evaluation.trained import checkpoint_corpus, load_trained
from txl_lightning.files import write_json
from txl_lightning.registry import Command, register_measurement


@dataclass
class DynamicOptions:
    """Options for `txl dynamic`."""

    checkpoint: str
    split: str = "test"
    lr: float = 0.1


def run(options: DynamicOptions, directory: Path) -> list[str]:
    """Score a split at the lengths in the run's evaluation and learn from it; write `dynamic.json`."""
    trained = load_trained(options.checkpoint)
    corpus = checkpoint_corpus(trained, options.checkpoint)
    # Cached keys and values would come from earlier weights.
    protocol = Protocol(trained, in_windows(trained.config).evaluation, cached=False)
    model = protocol.model()
    sgd = torch.optim.SGD(model.parameters(), options.lr)
    streams = protocol.streams(corpus, options.split)
    nats = 0.0
    memory = None
    for segment in streams:
        nll_BT, memory = model.score(segment.tokens, segment.targets, memory)
        nats += nll_BT.sum().item()
        nll_BT.mean().backward()
        sgd.step()
        sgd.zero_grad()
    nll = nats / streams.n_targets
    write_json(directory / "dynamic.json", {"nll": nll})
    return [f"{options.split}: {nll:.4f} nats per token"]


register_measurement(
    Command(
        "dynamic checkpoint=PATH",
        __name__,
        f"{__name__}.DynamicOptions",
        "loss of a checkpoint that learns from the text as it reads it",
    )
)
