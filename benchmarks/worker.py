"""Worker process of a benchmark: builds one implementation and runs steps of a workload on request.

Each JSON line on standard input, such as `{"steps": 5}`, is answered on standard output with the seconds of the steps.
An implementation is imported only when it is chosen: Hugging Face's lives in its own environment.
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
class BenchmarkCase:
    """Sizes of a benchmark: `segment` and `memory` in tokens, `steps` of one round."""

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


Build = Callable[[BenchmarkCase], tuple[nn.Module, Forward]]


def our_model(case: BenchmarkCase) -> Any:
    """Build this project's model; its memory starts with attended zeros, as Hugging Face's does."""
    from txl_lightning import TransformerXL, TransformerXLConfig

    config = TransformerXLConfig(
        vocab_size=case.vocab_size,
        n_layer=case.n_layer,
        d_model=case.d_model,
        n_head=case.n_head,
        d_head=case.d_model // case.n_head,
        d_inner=case.d_inner,
        dropout=case.dropout,
        mem_len=case.memory,
        memory_start="zeros",
    )
    return TransformerXL(config)


def their_model(case: BenchmarkCase) -> Any:
    """Build Hugging Face's model."""
    from transformers import TransfoXLConfig, TransfoXLLMHeadModel

    config = TransfoXLConfig(
        vocab_size=case.vocab_size,
        cutoffs=[],
        div_val=1,
        n_layer=case.n_layer,
        d_model=case.d_model,
        d_embed=case.d_model,
        n_head=case.n_head,
        d_head=case.d_model // case.n_head,
        d_inner=case.d_inner,
        dropout=case.dropout,
        dropatt=0.0,
        mem_len=case.memory,
        clamp_len=-1,
        same_length=False,
        untie_r=False,
    )
    return TransfoXLLMHeadModel(config)


def train_ours(case: BenchmarkCase) -> tuple[nn.Module, Forward]:
    """Build our training forward pass: tokens, memory -> mean loss of the segment, memory."""
    model = our_model(case)

    def forward(tokens: Tensor, memory: Any) -> tuple[Tensor, Any]:
        nll, memory = model.score(tokens[:, :-1], tokens[:, 1:], memory)
        return nll.mean(), memory

    return model, forward


def train_theirs(case: BenchmarkCase) -> tuple[nn.Module, Forward]:
    """Build Hugging Face's training forward pass; it shifts the labels itself and scores one token a segment less."""
    model = their_model(case)

    def forward(tokens: Tensor, memory: Any) -> tuple[Tensor, Any]:
        segment = tokens[:, :-1]
        output = model(segment, labels=segment, mems=memory)
        return output.loss, output.mems

    return model, forward


def evaluate_ours(case: BenchmarkCase, cached: bool = False) -> tuple[nn.Module, Forward]:
    """Build our evaluation forward pass: tokens, memory -> log-probabilities of all tokens, memory.

    The memory holds hidden states or, with `cached`, keys and values.
    """
    from txl_lightning.model.inference.cached import CachedTransformerXL

    model = our_model(case)
    run: Any = None if cached else model

    def forward(tokens: Tensor, memory: Any) -> tuple[Tensor, Any]:
        nonlocal run
        if run is None:
            run = CachedTransformerXL(model)  # the weights are on their device now, and autocast is on
        hidden, memory = run(tokens[:, :-1], memory)
        return run.log_probabilities(hidden), memory

    return model, forward


def evaluate_theirs(case: BenchmarkCase) -> tuple[nn.Module, Forward]:
    """Build Hugging Face's evaluation forward pass."""
    model = their_model(case)

    def forward(tokens: Tensor, memory: Any) -> tuple[Tensor, Any]:
        output = model(tokens[:, :-1], mems=memory)
        return output.prediction_scores, output.mems

    return model, forward


class Workload(ABC):
    """Model on random tokens, with a memory carried from step to step.

    Args:
        implementation: key of `implementations`.
        case: sizes.
    """

    implementations: ClassVar[dict[str, Build]]

    def __init__(self, implementation: str, case: BenchmarkCase) -> None:
        torch.set_num_threads(case.threads)
        torch.manual_seed(0)
        self.case = case
        self.model, self.forward = self.implementations[implementation](case)
        self.model.to(case.device)
        self.memory: Any = None

    def describe(self) -> dict[str, Any]:
        """Return the number of parameters, the versions and the device."""
        library = sys.modules.get("transformers")
        return {
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "torch": torch.__version__,
            "transformers": library.__version__ if library else None,
            "accelerator": torch.cuda.get_device_name() if self.case.device == "cuda" else None,
        }

    def run(self, steps: int) -> float:
        """Run steps and return their seconds."""
        case = self.case
        shape = (steps, case.batch_size, case.segment + 1)
        tokens = torch.randint(case.vocab_size, shape).to(case.device)
        self.synchronize()
        start = time.perf_counter()
        for segment in tokens:
            self.step(segment)
        self.synchronize()
        return time.perf_counter() - start

    @abstractmethod
    def step(self, tokens: Tensor) -> None:
        """Process one segment."""

    def infer(self, tokens: Tensor) -> Tensor:
        """Run the forward pass of one segment."""
        with torch.autocast(self.case.device, torch.bfloat16, enabled=self.case.precision == "bf16"):
            result, self.memory = self.forward(tokens, self.memory)
        return result

    def synchronize(self) -> None:
        """Wait for the GPU, if there is one."""
        if self.case.device == "cuda":
            torch.cuda.synchronize()


class TrainingWorkload(Workload):
    """Training steps: forward, backward, clipping, update."""

    implementations: ClassVar[dict[str, Build]] = {"ours": train_ours, "huggingface": train_theirs}

    def __init__(self, implementation: str, case: BenchmarkCase) -> None:
        super().__init__(implementation, case)
        self.model.train()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=LEARNING_RATE, fused=True)

    def step(self, tokens: Tensor) -> None:
        loss = self.infer(tokens)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()


class EvaluationWorkload(Workload):
    """Forward passes with a memory that starts full of zeros."""

    implementations: ClassVar[dict[str, Build]] = {
        "ours": partial(evaluate_ours, cached=True),
        "hidden": evaluate_ours,
        "huggingface": evaluate_theirs,
    }

    def __init__(self, implementation: str, case: BenchmarkCase) -> None:
        super().__init__(implementation, case)
        self.model.eval()

    @torch.no_grad()
    def step(self, tokens: Tensor) -> None:
        self.infer(tokens)


WORKLOADS: dict[str, type[Workload]] = {"training": TrainingWorkload, "evaluation": EvaluationWorkload}


def main() -> None:
    """Answer requests on standard output; output of libraries goes to standard error."""
    name, implementation, case = sys.argv[1:]
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        workload = WORKLOADS[name](implementation, BenchmarkCase(**json.loads(case)))
        print(json.dumps(workload.describe()), file=answers, flush=True)
        for line in sys.stdin:
            print(json.dumps({"seconds": workload.run(json.loads(line)["steps"])}), file=answers, flush=True)


if __name__ == "__main__":
    main()
