"""Worker process of a benchmark: builds one implementation and runs steps of a workload on request.

Each JSON line on standard input, such as `{"steps": 5}`, is answered on standard output with the seconds of the steps
and the peak memory. An implementation is imported only when it is chosen: Hugging Face's lives in its own environment.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from benchmarks.cases import BF16, LIMITS, BenchmarkCase

LEARNING_RATE = 0.00025
CLIP = 0.25
TOP_K = 40

Forward = Callable[[Tensor, Any], tuple[Tensor, Any]]
Draw = Callable[[Tensor, int], Any]


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
        cutoffs=tuple(case.cutoffs),
        mem_len=case.memory,
        memory_start="zeros",
    )
    return TransformerXL(config)


def their_model(case: BenchmarkCase) -> Any:
    """Build Hugging Face's model.

    In bf16 its log-softmax is computed in float32, as autocast does on a GPU but not on a CPU: its loss raises an
    error on log-probabilities in bfloat16.
    """
    from transformers import TransfoXLConfig, TransfoXLLMHeadModel

    if case.precision == BF16 and case.device == "cpu":
        log_softmax = nn.functional.log_softmax
        nn.functional.log_softmax = lambda logits, dim: log_softmax(logits.float(), dim)  # type: ignore[assignment]
    config = TransfoXLConfig(
        vocab_size=case.vocab_size,
        cutoffs=list(case.cutoffs),
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


def evaluate_ours(case: BenchmarkCase) -> tuple[nn.Module, Forward]:
    """Build our evaluation forward pass: tokens, memory of keys and values -> log-probabilities, memory."""
    from txl_lightning.model.inference.cached import CachedTransformerXL

    model = our_model(case)
    cached: Any = None

    def forward(tokens: Tensor, memory: Any) -> tuple[Tensor, Any]:
        nonlocal cached
        if cached is None:
            cached = CachedTransformerXL(model)  # the weights are on their device now, and autocast is on
        hidden, memory = cached(tokens[:, :-1], memory)
        return cached.log_probabilities(hidden), memory

    return model, forward


def evaluate_theirs(case: BenchmarkCase) -> tuple[nn.Module, Forward]:
    """Build Hugging Face's evaluation forward pass."""
    model = their_model(case)

    def forward(tokens: Tensor, memory: Any) -> tuple[Tensor, Any]:
        output = model(tokens[:, :-1], mems=memory)
        return output.prediction_scores, output.mems

    return model, forward


def draw_ours(case: BenchmarkCase) -> tuple[nn.Module, Draw]:
    """Build our generation: prompts, number of tokens -> nothing; draws from the likeliest tokens."""
    from txl_lightning.model.inference.generation import generate_all

    model = our_model(case)
    return model, lambda prompt_BT, n_tokens: generate_all(model, prompt_BT, n_tokens, top_k=TOP_K)


def draw_theirs(case: BenchmarkCase) -> tuple[nn.Module, Draw]:
    """Build the same loop around Hugging Face's model."""
    model = their_model(case)

    @torch.no_grad()
    def draw(tokens_BT: Tensor, n_tokens: int) -> None:
        memory = None
        for _ in range(n_tokens):
            output = model(tokens_BT, mems=memory)
            likeliest_Bk, tokens_Bk = output.prediction_scores[:, -1].float().topk(TOP_K)
            tokens_BT = tokens_Bk.gather(1, torch.multinomial(likeliest_Bk.softmax(-1), 1))
            memory = output.mems

    return model, draw


class Workload(ABC):
    """Work that is timed.

    Args:
        implementation: key of `implementations`.
        case: sizes.
    """

    implementations: ClassVar[dict[str, Any]]

    def __init__(self, implementation: str, case: BenchmarkCase) -> None:
        torch.set_num_threads(case.threads)
        torch.manual_seed(0)
        self.case = case
        self.memory_before = resident_bytes("VmRSS")
        self.build = self.implementations[implementation]

    @abstractmethod
    def prepare(self, steps: int) -> Callable[[], object]:
        """Return a function that does the work of `steps` steps."""

    def describe(self) -> dict[str, Any]:
        """Return the versions and the device."""
        library = sys.modules.get("transformers")
        return {
            "torch": torch.__version__,
            "transformers": library.__version__ if library else None,
            "accelerator": torch.cuda.get_device_name() if self.case.device == "cuda" else None,
        }

    def run(self, steps: int) -> float:
        """Run steps and return their seconds."""
        with self.context():
            work = self.prepare(steps)
            self.synchronize()
            start = time.perf_counter()
            work()
            self.synchronize()
            return time.perf_counter() - start

    def context(self) -> AbstractContextManager[object]:
        """Return the context in which a turn is prepared and run."""
        return nullcontext()

    def synchronize(self) -> None:
        """Wait for the GPU, if there is one."""
        if self.case.device == "cuda":
            torch.cuda.synchronize()

    def peak_bytes(self) -> int:
        """Return the largest memory so far, without that of the libraries."""
        if self.case.device == "cuda":
            return torch.cuda.max_memory_allocated()
        return resident_bytes("VmHWM") - self.memory_before


class ModelWorkload(Workload):
    """Work of a model."""

    def __init__(self, implementation: str, case: BenchmarkCase) -> None:
        super().__init__(implementation, case)
        self.model, self.forward = self.build(case)
        self.model.to(case.device)

    def describe(self) -> dict[str, Any]:
        """Add the number of parameters."""
        return {**super().describe(), "parameters": sum(p.numel() for p in self.model.parameters())}


class SegmentWorkload(ModelWorkload):
    """Model on segments of random tokens, with a memory carried from step to step."""

    memory: Any = None

    def prepare(self, steps: int) -> Callable[[], object]:
        case = self.case
        segments = random_tokens(case, steps, case.batch_size, case.segment + 1)
        return lambda: [self.step(segment) for segment in segments]

    @abstractmethod
    def step(self, tokens: Tensor) -> None:
        """Process one segment."""

    def infer(self, tokens: Tensor) -> Tensor:
        """Run the forward pass of one segment."""
        with autocast(self.case):
            result, self.memory = self.forward(tokens, self.memory)
        return result


class TrainingWorkload(SegmentWorkload):
    """Training steps: forward, backward, clipping, update."""

    implementations: ClassVar[dict[str, Any]] = {"ours": train_ours, "huggingface": train_theirs}

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


class InferenceWorkload(ModelWorkload):
    """Work without gradients."""

    def __init__(self, implementation: str, case: BenchmarkCase) -> None:
        super().__init__(implementation, case)
        self.model.eval()

    def context(self) -> AbstractContextManager[object]:
        return autocast(self.case)  # as in `txl evaluate`: weights are cast once, not in every segment


class EvaluationWorkload(InferenceWorkload, SegmentWorkload):
    """Forward passes with a memory that starts full of zeros."""

    implementations: ClassVar[dict[str, Any]] = {"ours": evaluate_ours, "huggingface": evaluate_theirs}

    def prepare(self, steps: int) -> Callable[[], object]:
        super().prepare(self.case.untimed)()
        return super().prepare(steps)

    @torch.no_grad()
    def step(self, tokens: Tensor) -> None:
        self.infer(tokens)


class GenerationWorkload(InferenceWorkload):
    """Tokens drawn one at a time, after a prompt of one token and a memory full of zeros; a step is one token."""

    implementations: ClassVar[dict[str, Any]] = {"ours": draw_ours, "huggingface": draw_theirs}

    def prepare(self, steps: int) -> Callable[[], object]:
        prompt_BT = random_tokens(self.case, self.case.batch_size, 1)
        return lambda: self.forward(prompt_BT, steps)


class LoaderWorkload(Workload):
    """Segments of the training streams, without a model."""

    implementations: ClassVar[dict[str, Any]] = {"loader": None}

    def prepare(self, steps: int) -> Callable[[], object]:
        from txl_lightning.data.streams import OrderedStreams

        case = self.case
        tokens = random_tokens(case, 2 * case.tokens * (steps + 1)).cpu().numpy().astype("uint8")
        segments = iter(OrderedStreams(tokens, case.batch_size, case.segment))
        return lambda: list(islice(segments, steps))


class LimitWorkload(Workload):
    """Limits of the machine: products of large matrices, and reads of a large buffer; a step is all of a turn."""

    implementations: ClassVar[dict[str, Any]] = {"matrix": None, "bandwidth": None}

    def __init__(self, implementation: str, case: BenchmarkCase) -> None:
        super().__init__(implementation, case)
        dtype = torch.bfloat16 if case.precision == BF16 else torch.float32
        limits, is_matrix = LIMITS[case.device], implementation == "matrix"
        shape = (limits.matrix_size, limits.matrix_size) if is_matrix else (limits.buffer_values,)
        self.values = torch.randn(shape, dtype=dtype, device=case.device)  # a GPU multiplies ones faster
        self.times = limits.products if is_matrix else limits.reads

    def describe(self) -> dict[str, Any]:
        """Add the floating-point operations or bytes of a turn."""
        values = self.values
        once = 2 * len(values) ** 3 if values.dim() == 2 else values.numel() * values.element_size()
        return {**super().describe(), "work": self.times * once}

    def prepare(self, steps: int) -> Callable[[], object]:
        values = self.values
        once = values.sum if values.dim() == 1 else lambda: values @ values
        return lambda: all(once() is not None for _ in range(self.times))  # keeps no result


WORKLOADS: dict[str, type[Workload]] = {
    "training": TrainingWorkload,
    "evaluation": EvaluationWorkload,
    "generation": GenerationWorkload,
}
OTHER_WORKLOADS: dict[str, type[Workload]] = {
    "loader": LoaderWorkload,
    "matrix": LimitWorkload,
    "bandwidth": LimitWorkload,
}


def autocast(case: BenchmarkCase) -> torch.autocast:
    """Return the context of a forward pass: bfloat16 where the case says so."""
    return torch.autocast(case.device, torch.bfloat16, enabled=case.precision == BF16)


def random_tokens(case: BenchmarkCase, *shape: int) -> Tensor:
    """Return random tokens: evenly drawn, or, for an adaptive softmax, with P(token) falling as 1 / rank."""
    if not case.cutoffs:
        return torch.randint(case.vocab_size, shape).to(case.device)
    ranks = torch.rand(shape, dtype=torch.float64).mul(torch.log(torch.tensor(case.vocab_size + 1.0))).exp()
    return (ranks.long() - 1).clamp(0, case.vocab_size - 1).to(case.device)


def resident_bytes(name: str) -> int:
    """Return `VmRSS` (memory now) or `VmHWM` (its peak) of this process."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return 1024 * int(found[1])


def make_workload(name: str, implementation: str, case: BenchmarkCase) -> Workload:
    """Return the workload of an implementation; limits and the loader are the same for all.

    A tiny model takes a step first: what the libraries load at their first use is no memory of the model.
    """
    if implementation in OTHER_WORKLOADS:
        return OTHER_WORKLOADS[implementation](implementation, case)
    tiny = replace(case, n_layer=1, d_model=32, n_head=2, d_inner=32, segment=8, memory=8, batch_size=2)
    WORKLOADS[name](implementation, tiny).run(1)
    return WORKLOADS[name](implementation, case)


def main() -> None:
    """Answer requests on standard output; output of libraries goes to standard error."""
    name, implementation, sizes = sys.argv[1:]
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        workload = make_workload(name, implementation, BenchmarkCase(**json.loads(sizes)))
        print(json.dumps(workload.describe()), file=answers, flush=True)
        for line in sys.stdin:
            seconds = workload.run(json.loads(line)["steps"])
            print(json.dumps({"seconds": seconds, "peak_bytes": workload.peak_bytes()}), file=answers, flush=True)


if __name__ == "__main__":
    main()
