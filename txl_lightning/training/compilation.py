"""A compiled or replayed training step: torch.compile, CUDA graphs and the Triton kernel of attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from txl_lightning.config.schemas import Config
from txl_lightning.distributed.ranks import n_processes
from txl_lightning.model.attention import Attention
from txl_lightning.model.baselines import LSTMLayer
from txl_lightning.model.embedding import TokenSoftmax

UNCOMPILED: tuple[tuple[Any, str], ...] = (
    (TokenSoftmax, "_add_tails"),  # the shapes differ in every call, and each would be compiled
    (LSTMLayer, "forward"),  # torch compiles no LSTM, and torch 2.11 fails at one with other weights
)


def compiled(score: Any, backend: str = "inductor", graph: bool = False) -> Any:
    """Return a compiled function whose backward pass is without autocast, as Lightning runs it.

    Args:
        score: the function.
        backend: of torch.compile.
        graph: whether a GPU replays it (`StaticMemory`).
    """
    options: Any = torch._functorch.config
    options.backward_pass_autocast = "off"  # read when the function is first called
    # Here, since as a decorator it imports torch._dynamo, which takes as long as torch.
    for owner, method in UNCOMPILED:
        setattr(owner, method, torch.compiler.disable(getattr(owner, method)))
    return torch.compile(score, backend=backend, mode="reduce-overhead" if graph else None)


def use_relative_kernel(model: Any) -> None:
    """Let the attentions of a model compute by the Triton kernel, also in its evaluation."""
    from txl_lightning.model.kernels import relative  # here: it needs Triton, which torch for the CPU lacks

    for attention in model.modules():
        if isinstance(attention, Attention):
            attention.kernel = relative.attend


def why_no_graph(config: Config) -> str | None:
    """Return why the steps of a training are not replayed; None if they are."""
    trainer = config.trainer
    reasons = {
        "only a compiled step is captured: trainer.compile=true": not trainer.compile,
        "it is for trainer.accelerator=gpu": trainer.accelerator not in ("gpu", "auto"),
        "trainer.callbacks may read what a replay overwrites": bool(trainer.callbacks),
        "trainer.stream_groups have several backward passes in a step": trainer.stream_groups > 1,
        "memory.gradient_segments have several forward passes in a step": config.memory.gradient_segments > 0,
        "several processes average gradients during the backward pass": n_processes(trainer) > 1,
    }
    for reason, holds in reasons.items():
        if holds:
            return reason
    return None


class StaticMemory:
    """Keeps the tensors of a memory in one storage from step to step, for `trainer.graph`.

    torch captures the compiled forward and backward pass (`mode="reduce-overhead"`) and replays them by one launch
    each. A replay reads its inputs at the addresses of the capture, and overwrites the results of the replay before it.
    So the memory is copied out of the results, always to one place. Clipping, optimizer, learning rate and gradient
    scaler stay outside; dropout draws from the generator of the GPU, which each replay moves on.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    def put(self, memory: Any) -> Any:
        """Return the memory in the storage of the memories before it; a new one where shape or type has changed."""
        placed: dict[str, Tensor] = {}
        for name, x in memory._tensors().items():
            place = self.tensors.get(name)
            if place is None or (place.shape, place.dtype, place.device) != (x.shape, x.dtype, x.device):
                place = torch.empty_like(x, memory_format=torch.contiguous_format)
                torch._dynamo.mark_static_address(place)  # a graph then reads it there, without a copy of its own
                self.tensors[name] = place
            placed[name] = place.copy_(x)  # does nothing if it is the same tensor
        return replace(memory, **placed)
