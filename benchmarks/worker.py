"""One side of `benchmarks.bench`: builds one implementation, then runs as many steps of a task as it is told.

Standard input takes one JSON line a turn, `{"steps": 5}`; standard output answers each with the seconds they took.
Each implementation is imported only when it is asked for, since they live in environments of their own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

LEARNING_RATE = 0.00025
CLIP = 0.25

Forward = Callable[[Tensor, Any], tuple[Tensor, Any]]


@dataclass(frozen=True)
class Setup:
    """What is run and how; `memory` is a length, `steps` are those of one round."""

    n_layer: int
    d_model: int
    n_head: int
    d_inner: int
    segment: int
    memory: int
    batch_size: int
    steps: int
    vocab_size: int = 256
    dropout: float = 0.0
    threads: int = 2
    device: str = "cpu"
    precision: str = "float32"


Build = Callable[[Setup], tuple[nn.Module, Forward]]


def our_model(setup: Setup) -> Any:
    """This project's model, starting from attended zeros as the other one does."""
    from txl_lightning import TransformerXL, TransformerXLConfig

    config = TransformerXLConfig(
        vocab_size=setup.vocab_size,
        n_layer=setup.n_layer,
        d_model=setup.d_model,
        n_head=setup.n_head,
        d_head=setup.d_model // setup.n_head,
        d_inner=setup.d_inner,
        dropout=setup.dropout,
        mem_len=setup.memory,
        memory_start="zeros",
    )
    return TransformerXL(config)


def their_model(setup: Setup) -> Any:
    """Hugging Face's model."""
    from transformers import TransfoXLConfig, TransfoXLLMHeadModel

    config = TransfoXLConfig(
        vocab_size=setup.vocab_size,
        cutoffs=[],
        div_val=1,
        n_layer=setup.n_layer,
        d_model=setup.d_model,
        d_embed=setup.d_model,
        n_head=setup.n_head,
        d_head=setup.d_model // setup.n_head,
        d_inner=setup.d_inner,
        dropout=setup.dropout,
        dropatt=0.0,
        mem_len=setup.memory,
        clamp_len=-1,
        same_length=False,
        untie_r=False,
    )
    return TransfoXLLMHeadModel(config)


def train_ours(setup: Setup) -> tuple[nn.Module, Forward]:
    """The mean loss of a segment and the memory."""
    model = our_model(setup)

    def forward(tokens: Tensor, memory: Any) -> tuple[Tensor, Any]:
        nll, memory = model.score(tokens[:, :-1], tokens[:, 1:], memory)
        return nll.mean(), memory

    return model, forward


def train_theirs(setup: Setup) -> tuple[nn.Module, Forward]:
    """The same. Hugging Face shifts the labels itself, so it scores one token a segment less than ours."""
    model = their_model(setup)

    def forward(tokens: Tensor, memory: Any) -> tuple[Tensor, Any]:
        segment = tokens[:, :-1]
        output = model(segment, labels=segment, mems=memory)
        return output.loss, output.mems

    return model, forward


def evaluate_ours(setup: Setup, cached: bool = False) -> tuple[nn.Module, Forward]:
    """The distribution after every token of a segment and the memory, of hidden states or cached projections."""
    from txl_lightning.model.inference.cached import CachedTransformerXL

    model = our_model(setup)
    run: Any = None if cached else model

    def forward(tokens: Tensor, memory: Any) -> tuple[Tensor, Any]:
        nonlocal run
        if run is None:
            run = CachedTransformerXL(model)  # the weights are on their device now, and autocast is on
        hidden, memory = run(tokens[:, :-1], memory)
        return run.log_probabilities(hidden), memory

    return model, forward


def evaluate_theirs(setup: Setup) -> tuple[nn.Module, Forward]:
    """The same."""
    model = their_model(setup)

    def forward(tokens: Tensor, memory: Any) -> tuple[Tensor, Any]:
        output = model(tokens[:, :-1], mems=memory)
        return output.prediction_scores, output.mems

    return model, forward


class Task(ABC):
    """A model that works on random tokens and keeps its memory from one call to the next."""

    implementations: ClassVar[dict[str, Build]]

    def __init__(self, implementation: str, setup: Setup) -> None:
        torch.set_num_threads(setup.threads)
        torch.manual_seed(0)
        self.setup = setup
        self.model, self.forward = self.implementations[implementation](setup)
        self.model.to(setup.device)
        self.memory: Any = None

    def describe(self) -> dict[str, Any]:
        """The number of parameters, and what runs them."""
        library = sys.modules.get("transformers")
        return {
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "torch": torch.__version__,
            "transformers": library.__version__ if library else None,
            "accelerator": torch.cuda.get_device_name() if self.setup.device == "cuda" else None,
        }

    def run(self, steps: int) -> float:
        """Seconds of so many steps."""
        setup = self.setup
        shape = (steps, setup.batch_size, setup.segment + 1)
        tokens = torch.randint(setup.vocab_size, shape).to(setup.device)
        self.synchronize()
        start = time.perf_counter()
        for segment in tokens:
            self.step(segment)
        self.synchronize()
        return time.perf_counter() - start

    @abstractmethod
    def step(self, tokens: Tensor) -> None:
        """One segment."""

    def infer(self, tokens: Tensor) -> Tensor:
        """The forward pass of one segment."""
        with torch.autocast(self.setup.device, torch.bfloat16, enabled=self.setup.precision == "bf16"):
            result, self.memory = self.forward(tokens, self.memory)
        return result

    def synchronize(self) -> None:
        """Wait for the accelerator, if there is one."""
        if self.setup.device == "cuda":
            torch.cuda.synchronize()


class Training(Task):
    """Forward, backward, clipping and update."""

    implementations: ClassVar[dict[str, Build]] = {"ours": train_ours, "huggingface": train_theirs}

    def __init__(self, implementation: str, setup: Setup) -> None:
        super().__init__(implementation, setup)
        self.model.train()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=LEARNING_RATE, fused=True)

    def step(self, tokens: Tensor) -> None:
        """An update by one segment."""
        loss = self.infer(tokens)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()


class Evaluation(Task):
    """The forward pass alone, the memory full of zeros from the start."""

    implementations: ClassVar[dict[str, Build]] = {
        "ours": partial(evaluate_ours, cached=True),
        "hidden": evaluate_ours,
        "huggingface": evaluate_theirs,
    }

    def __init__(self, implementation: str, setup: Setup) -> None:
        super().__init__(implementation, setup)
        self.model.eval()

    @torch.no_grad()
    def step(self, tokens: Tensor) -> None:
        """The distributions after one segment's tokens."""
        self.infer(tokens)


TASKS: dict[str, type[Task]] = {"training": Training, "evaluation": Evaluation}


def main() -> None:
    """Answer on what was standard output; whatever a library prints goes to standard error."""
    name, implementation, setup = sys.argv[1:]
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        task = TASKS[name](implementation, Setup(**json.loads(setup)))
        print(json.dumps(task.describe()), file=answers, flush=True)
        for line in sys.stdin:
            print(json.dumps({"seconds": task.run(json.loads(line)["steps"])}), file=answers, flush=True)


if __name__ == "__main__":
    main()
