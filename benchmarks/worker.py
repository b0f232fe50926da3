"""Turns of a benchmark: one worker process for each implementation, and the rounds in which they take turns.

Turns spread the machine's other load over all implementations; only ratios within a round compare them. A worker runs
steps of a workload on request: each JSON line on its standard input, such as `{"steps": 5}`, is answered with the
seconds of the steps and the peak memory. An implementation is imported only when it is chosen: Hugging Face's lives in
its own environment.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.cases import BF16, LIMITS, BenchmarkCase, TurnTaking

ROOT = Path(__file__).parent.parent
OWN, TRANSFORMERS = Path(sys.executable), ROOT / ".venv-transformers" / "bin" / "python"
PAUSE_SECONDS = 0.2  # before each turn, until the threads of the other worker sleep
LEARNING_RATE = 0.00025
CLIP = 0.25
TOP_K = 40

Prepare = Callable[[int], Callable[[], object]]


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


MODELS: dict[str, Callable[[BenchmarkCase], Any]] = {"ours": our_model, "huggingface": their_model}


def train_ours(model: Any, tokens: Tensor, memory: Any) -> tuple[Tensor, Any]:
    """Return the mean loss of a segment, and the memory."""
    nll, memory = model.score(tokens[:, :-1], tokens[:, 1:], memory)
    return nll.mean(), memory


def train_theirs(model: Any, tokens: Tensor, memory: Any) -> tuple[Tensor, Any]:
    """Return the same of Hugging Face's model; it shifts the labels itself and scores one token a segment less."""
    output = model(tokens[:, :-1], labels=tokens[:, :-1], mems=memory)
    return output.loss, output.mems


def evaluate_ours(model: Any, tokens: Tensor, memory: Any) -> tuple[Tensor, Any]:
    """Return the log-probabilities of a segment, and the memory of keys and values."""
    cached = cached_model(model)
    hidden, memory = cached(tokens[:, :-1], memory)
    return cached.log_probabilities(hidden), memory


@cache
def cached_model(model: Any) -> Any:
    """Return the model for inference, made once its weights are on their device and autocast is on."""
    from txl_lightning.model.inference.cached import CachedTransformerXL

    return CachedTransformerXL(model)


def evaluate_theirs(model: Any, tokens: Tensor, memory: Any) -> tuple[Tensor, Any]:
    """Return the same of Hugging Face's model."""
    output = model(tokens[:, :-1], mems=memory)
    return output.prediction_scores, output.mems


def draw_ours(model: Any, prompt_BT: Tensor, n_tokens: int) -> None:
    """Draw tokens from the likeliest."""
    from txl_lightning.model.inference.generation import generate_all

    generate_all(model, prompt_BT, n_tokens, top_k=TOP_K)


@torch.no_grad()
def draw_theirs(model: Any, tokens_BT: Tensor, n_tokens: int) -> None:
    """Do the same with Hugging Face's model."""
    memory = None
    for _ in range(n_tokens):
        output = model(tokens_BT, mems=memory)
        likeliest_Bk, tokens_Bk = output.prediction_scores[:, -1].float().topk(TOP_K)
        tokens_BT = tokens_Bk.gather(1, torch.multinomial(likeliest_Bk.softmax(-1), 1))
        memory = output.mems


FORWARD: dict[str, dict[str, Callable[..., Any]]] = {
    "training": {"ours": train_ours, "huggingface": train_theirs},
    "evaluation": {"ours": evaluate_ours, "huggingface": evaluate_theirs},
    "generation": {"ours": draw_ours, "huggingface": draw_theirs},
}


@dataclass
class Workload:
    """Work that is timed.

    Attributes:
        case: sizes.
        prepare: returns a function that does the work of so many steps.
        memory_before: bytes of the process before the model was built.
        model: the model; None without one.
        work: floating-point operations or bytes of a turn, of a limit.
        context: returns the context in which a turn is prepared and run.
    """

    case: BenchmarkCase
    prepare: Prepare
    memory_before: int
    model: Any = None
    work: float | None = None
    context: Callable[[], AbstractContextManager[object]] = nullcontext

    def run(self, steps: int) -> float:
        """Run steps and return their seconds."""
        wait = torch.cuda.synchronize if self.case.device == "cuda" else lambda: None
        with self.context():
            work = self.prepare(steps)
            wait()
            start = time.perf_counter()
            work()
            wait()
            return time.perf_counter() - start

    def describe(self) -> dict[str, Any]:
        """Return versions, device, and the number of parameters or the work of a turn."""
        library = sys.modules.get("transformers")
        own = {"work": self.work} if self.work else {}
        own |= {"parameters": sum(p.numel() for p in self.model.parameters())} if self.model else {}
        return {
            "torch": torch.__version__,
            "transformers": library.__version__ if library else None,
            "accelerator": torch.cuda.get_device_name() if self.case.device == "cuda" else None,
            **own,
        }

    def peak_bytes(self) -> int:
        """Return the largest memory so far, without that of the libraries."""
        if self.case.device == "cuda":
            return torch.cuda.max_memory_allocated()
        return resident_bytes("VmHWM") - self.memory_before


def make_workload(name: str, implementation: str, case: BenchmarkCase) -> Workload:
    """Return the workload of an implementation; limits and the loader are the same for all.

    A tiny model takes a step first: what the libraries load at their first use is no memory of the model.

    Args:
        name: training (forward, backward, clipping, update), evaluation (forward passes), or generation (tokens drawn
            one at a time after a prompt of one token; a step is one token).
        implementation: ours, huggingface, loader (segments of the streams without a model), matrix or bandwidth (the
            limits of the machine; a step is all of a turn).
        case: sizes.
    """
    torch.set_num_threads(case.threads)
    memory_before = resident_bytes("VmRSS")
    if implementation == "loader":
        return Workload(case, partial(load, case), memory_before)
    if implementation in ("matrix", "bandwidth"):
        return limit_workload(case, implementation == "matrix", memory_before)
    tiny = replace(case, n_layer=1, d_model=32, n_head=2, d_inner=32, segment=8, memory=8, batch_size=2)
    if case != tiny:
        make_workload(name, implementation, tiny).run(1)
        memory_before = resident_bytes("VmRSS")
    torch.manual_seed(0)
    model = MODELS[implementation](case).to(case.device)
    forward = partial(FORWARD[name][implementation], model)
    if name == "training":
        return Workload(case, partial(segments, case, training_step(model, forward, case)), memory_before, model)
    model.eval()
    context = partial(autocast, case)  # as in `txl evaluate`: weights are cast once, not in every segment
    if name == "generation":
        prepare: Prepare = lambda steps: partial(forward, random_tokens(case, case.batch_size, 1), steps)  # noqa: E731
    else:
        prepare = partial(warm_segments, case, torch.no_grad()(with_memory(forward, case)))
    return Workload(case, prepare, memory_before, model, context=context)


def with_memory(forward: Callable[..., Any], case: BenchmarkCase) -> Callable[[Tensor], Tensor]:
    """Return the forward pass of a segment that carries its memory from call to call."""
    memory = None

    def infer(tokens: Tensor) -> Tensor:
        nonlocal memory
        with autocast(case):
            result, memory = forward(tokens, memory)
        return result

    return infer


def training_step(model: nn.Module, forward: Callable[..., Any], case: BenchmarkCase) -> Callable[[Tensor], object]:
    """Return a step: forward, backward, clipping, update."""
    optimizer = torch.optim.Adam(model.train().parameters(), lr=LEARNING_RATE, fused=True)
    loss_of = with_memory(forward, case)

    def step(tokens: Tensor) -> None:
        loss = loss_of(tokens)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()

    return step


def segments(case: BenchmarkCase, step: Callable[[Tensor], object], steps: int) -> Callable[[], object]:
    """Draw the tokens of segments; return the steps on them."""
    tokens = random_tokens(case, steps, case.batch_size, case.segment + 1)
    return lambda: [step(segment) for segment in tokens]


def warm_segments(case: BenchmarkCase, step: Callable[[Tensor], object], steps: int) -> Callable[[], object]:
    """Take the untimed steps; return those that are timed."""
    segments(case, step, case.untimed)()
    return segments(case, step, steps)


def load(case: BenchmarkCase, steps: int) -> Callable[[], object]:
    """Return the reading of segments from the training streams."""
    from txl_lightning.data.streams import OrderedStreams

    tokens = random_tokens(case, 2 * case.tokens * (steps + 1)).cpu().numpy().astype("uint8")
    streams = iter(OrderedStreams(tokens, case.batch_size, case.segment))
    return lambda: list(islice(streams, steps))


def limit_workload(case: BenchmarkCase, is_matrix: bool, memory_before: int) -> Workload:
    """Return products of large matrices, or reads of a large buffer."""
    dtype, limits = torch.bfloat16 if case.precision == BF16 else torch.float32, LIMITS[case.device]
    shape = (limits.matrix_size, limits.matrix_size) if is_matrix else (limits.buffer_values,)
    values = torch.randn(shape, dtype=dtype, device=case.device)  # a GPU multiplies ones faster
    times, once = (limits.products, lambda: values @ values) if is_matrix else (limits.reads, values.sum)
    work = times * (2 * limits.matrix_size**3 if is_matrix else values.numel() * values.element_size())
    prepare = lambda steps: lambda: all(once() is not None for _ in range(times))  # noqa: E731 (keeps no result)
    return Workload(case, prepare, memory_before, work=work)


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


class Worker:
    """Process that runs steps of one implementation on request and is idle otherwise; it ends with this process.

    Args:
        workload: name of the workload.
        turn: implementation and precision, such as `ours bf16`.
        sizes: sizes of the case.
    """

    def __init__(self, workload: str, turn: str, sizes: BenchmarkCase) -> None:
        self.turn = turn
        implementation, precision = turn.split()
        python = TRANSFORMERS if implementation == "huggingface" else OWN
        words = [workload, implementation, json.dumps(asdict(replace(sizes, precision=precision)))]
        self.process = subprocess.Popen(
            [python, "-m", "benchmarks.worker", *words],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def answer(self, request: str = "") -> dict[str, Any]:
        """Return the answer to a request such as `{"steps": 5}`; the first one, to none, describes the workload."""
        assert self.process.stdin
        assert self.process.stdout
        if request:
            self.process.stdin.write(f"{request}\n")
            self.process.stdin.flush()
        if line := self.process.stdout.readline():
            return json.loads(line)
        self.process.wait()
        raise SystemExit(f"bench: the worker for {self.turn} failed; its error is above")


def measure(comparison: TurnTaking, rounds: int, warmup: int) -> dict[str, Any]:
    """Run rounds in which every process takes one turn, in alternating order; run it in a process of its own.

    Returns:
        `workers` (their descriptions), `peak_bytes` and, with a number for each round after the warm-up, `seconds`;
        all by turn.
    """
    sizes = comparison.sizes
    workers = [Worker(comparison.workload, turn, sizes) for turn in comparison.turns]
    descriptions = {worker.turn: worker.answer() for worker in workers}
    answers: dict[str, list[dict[str, Any]]] = {worker.turn: [] for worker in workers}
    for i in range(warmup + rounds):
        for worker in workers if i % 2 == 0 else reversed(workers):
            time.sleep(PAUSE_SECONDS)
            answers[worker.turn].append(worker.answer(json.dumps({"steps": sizes.steps})))
    return {
        "workers": descriptions,
        "peak_bytes": {turn: given[-1]["peak_bytes"] for turn, given in answers.items()},
        "seconds": {turn: [answer["seconds"] for answer in given[warmup:]] for turn, given in answers.items()},
    }


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
