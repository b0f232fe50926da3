"""Measure speed beside other implementations, in alternating turns (`make bench`).

    make bench                                          ours, Hugging Face's class and x-transformers
    make bench ARGS='--against CHECKOUT'                ours beside another checkout, such as a tagged one
    make bench ARGS='--original CHECKOUT/pytorch'       the paper's code, with `mem_transformer.py` in that folder

Every implementation in every precision is a process. They take turns, so that other load on the machine meets all
alike; ratios are medians over rounds, each computed within its round. A table in Markdown goes to standard output,
and all seconds to `--output`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parent.parent
OTHERS = (
    ROOT / ".venv-transformers" / "bin" / "python"
)  # has Hugging Face's class and x-transformers
PAUSE_SECONDS = 0.2  # before each turn, until the last process's threads sleep
UNTIMED = 1  # first step in every turn: it warms the caches, and casts weights in evaluation


@dataclass(frozen=True)
class Case:
    """Sizes for a model and its steps.

    Args:
        work: `training` (forward, backward, clipping at 0.25, fused Adam, dropout 0.1), `evaluation` (forward pass
            over a segment with a full memory, up to the log-probabilities), or `command` (`txl train` with one step).
        segment: tokens in a segment.
        memory: tokens in the memory; it starts with zeros that are attended to, as Hugging Face's does.
        steps: steps in one turn.
        cutoffs: the adaptive softmax's.
    """

    work: str = "training"
    n_layer: int = 4
    d_model: int = 128
    n_head: int = 8
    segment: int = 64
    memory: int = 64
    batch_size: int = 16
    steps: int = 5
    vocab_size: int = 256
    cutoffs: tuple[int, ...] = ()
    threads: int = 2
    device: str = "cpu"
    bf16: bool = False

    @property
    def sizes(self) -> dict[str, Any]:
        """Sizes by the names that ours and Hugging Face's share."""
        width = {
            "d_model": self.d_model,
            "d_head": self.d_model // self.n_head,
            "d_inner": 4 * self.d_model,
        }
        return {
            "n_layer": self.n_layer,
            "n_head": self.n_head,
            "mem_len": self.memory,
            "dropout": 0.1,
            **width,
        }


MEDIUM = Case(n_layer=6, d_model=256, segment=128, memory=128, steps=2)
BASE = Case(n_layer=12, d_model=512, segment=512, memory=512, batch_size=2, steps=1)
LONG = replace(BASE, work="evaluation", segment=128, memory=3800, batch_size=1, steps=4)
CASES = {
    "tiny": Case(
        n_layer=2, d_model=32, n_head=4, segment=16, memory=16, batch_size=4
    ),  # only where it is named
    "gpu": replace(BASE, batch_size=22, steps=5),  # also: enwik8 base
    "small": Case(),
    "medium": MEDIUM,
    "base": BASE,
    "words": replace(MEDIUM, vocab_size=20_000, cutoffs=(2_000, 8_000)),
    "evaluation": LONG,
    "token": replace(LONG, segment=1, steps=20),
    "first-step": Case(work="command"),
}


def ours(case: Case) -> tuple[nn.Module, Callable[..., tuple[Tensor, Any]]]:
    """Return this project's model, and its step: tokens and memory to loss or log-probabilities, and memory."""
    from txl_lightning import TransformerXL, TransformerXLConfig
    from txl_lightning.model.inference.cached import CachedTransformerXL

    config = TransformerXLConfig(
        vocab_size=case.vocab_size, cutoffs=case.cutoffs, memory_start="zeros", **case.sizes
    )
    model = TransformerXL(config).to(case.device)
    cached: list[Any] = []

    def step(tokens: Tensor, memory: Any) -> tuple[Tensor, Any]:
        if case.work == "training":
            nll, memory = model.score(tokens[:, :-1], tokens[:, 1:], memory)
            return nll.mean(), memory
        if not cached:
            cached.append(CachedTransformerXL(model))
        hidden, memory = cached[0](tokens[:, :-1], memory)
        return cached[0].log_probabilities(hidden), memory

    return model, step


def huggingface(case: Case) -> tuple[nn.Module, Callable[..., tuple[Tensor, Any]]]:
    """Return the same for Hugging Face's class (transformers 4.37.2); it scores one token less in each segment.

    In bf16 its log-softmax is computed in float32, as autocast does on a GPU: on a CPU its loss refuses bfloat16.
    """
    from transformers import TransfoXLConfig, TransfoXLLMHeadModel

    if case.bf16 and case.device == "cpu":
        log_softmax = nn.functional.log_softmax
        nn.functional.log_softmax = lambda logits, dim: log_softmax(logits.float(), dim)  # type: ignore[assignment]
    config = TransfoXLConfig(
        vocab_size=case.vocab_size,
        cutoffs=list(case.cutoffs),
        div_val=1,
        d_embed=case.d_model,
        dropatt=0.0,
        untie_r=False,
        **case.sizes,
    )
    model = TransfoXLLMHeadModel(config).to(case.device)

    def step(tokens: Tensor, memory: Any) -> tuple[Tensor, Any]:
        if case.work == "training":
            output = model(tokens[:, :-1], labels=tokens[:, :-1], mems=memory)
            return output.loss, output.mems
        output = model(tokens[:, :-1], mems=memory)
        return output.prediction_scores, output.mems

    return model, step


def x_transformers(case: Case) -> tuple[nn.Module, Callable[..., tuple[Tensor, Any]]]:
    """Return the same for x-transformers' decoder with memory; positions are rotary, and its memory starts empty."""
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(
        dim=case.d_model,
        depth=case.n_layer,
        heads=case.n_head,
        attn_dim_head=case.d_model // case.n_head,
        rotary_pos_emb=True,
        attn_flash=case.device == "cuda",
        attn_dropout=0.0,
        ff_dropout=0.1,
        layer_dropout=0.0,
    )
    model = TransformerWrapper(
        num_tokens=case.vocab_size,
        max_seq_len=case.segment,
        max_mem_len=case.memory,
        attn_layers=layers,
        emb_dropout=0.1,
    ).to(case.device)

    def step(tokens: Tensor, memory: Any) -> tuple[Tensor, Any]:
        logits, memory = model(tokens[:, :-1], mems=memory, return_mems=True)
        memory = [state.detach() for state in memory]
        if case.work == "training":
            return nn.functional.cross_entropy(
                logits.float().flatten(0, 1), tokens[:, 1:].flatten()
            ), memory
        return logits.log_softmax(-1), memory

    return model, step


def original(case: Case) -> tuple[nn.Module, Callable[..., tuple[Tensor, Any]]]:
    """Return the same for the paper's code, in a folder on the path; it gives losses, no log-probabilities."""
    torch.version.cuda = (
        torch.version.cuda or "0.0"
    )  # it reads the number, also where there is none
    Tensor.byte = Tensor.bool  # type: ignore[method-assign]  # torch no longer takes its masks' type
    from mem_transformer import MemTransformerLM

    model = MemTransformerLM(
        case.vocab_size,
        **case.sizes,
        dropatt=0.0,
        tgt_len=case.segment,
        ext_len=0,
        cutoffs=list(case.cutoffs),
        tie_projs=[False] * (len(case.cutoffs) + 1),
    )
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.02)
    model.to(case.device)

    def step(tokens: Tensor, memory: Any) -> tuple[Tensor, Any]:
        loss, *memory = model(
            tokens[:, :-1].t().contiguous(), tokens[:, 1:].t().contiguous(), *(memory or ())
        )
        return loss.mean() if case.work == "training" else loss, memory

    return model, step


IMPLEMENTATIONS = {
    "ours": ours,
    "huggingface": huggingface,
    "x-transformers": x_transformers,
    "original": original,
}


def random_segments(case: Case, n: int) -> Tensor:
    """Draw tokens for n steps; where the softmax is adaptive, P(token) falls as 1 / rank."""
    shape = (n, case.batch_size, case.segment + 1)
    if not case.cutoffs:
        return torch.randint(case.vocab_size, shape).to(case.device)
    ranks = torch.rand(shape, dtype=torch.float64)
    tokens = (case.vocab_size**ranks).long() - 1
    return tokens.to(case.device)


def turns_of(implementation: str, case: Case) -> Callable[[], float]:
    """Return a function that does one turn and returns its seconds."""
    torch.set_num_threads(case.threads)
    torch.manual_seed(0)
    model, step = IMPLEMENTATIONS[implementation](case)
    training = case.work == "training"
    model.train(training)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.00025, fused=True)
    memory: Any = None

    def autocast() -> Any:
        return torch.autocast(case.device, torch.bfloat16, enabled=case.bf16)

    def now() -> float:
        if case.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def steps(n: int) -> float:
        nonlocal memory
        segments = random_segments(case, n)
        start = now()
        for tokens in segments:
            with autocast():
                loss, memory = step(tokens, memory)
            if training:
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.25)
                optimizer.step()
        return now() - start

    def turn() -> float:
        if training:
            steps(UNTIMED)
            return steps(case.steps)
        with torch.no_grad(), autocast():  # weights are cast once
            steps(UNTIMED)
            return steps(case.steps)

    return turn


def command_turns(case: Case) -> Callable[[], float]:
    """Return the seconds that `txl train` takes for one step, in a new process; the corpus is cached before.

    Corpus and model are named, since the defaults of two versions differ.
    """
    precision = "bf16-mixed" if case.bf16 else "32-true"
    command = [
        sys.executable,
        "-m",
        "txl_lightning.cli",
        "train",
        "data=python-packages",
        "data.level=byte",
        "model=txl_smoke",
        "logger=none",
        "trainer.max_steps=1",
        "trainer.val_every_n_steps=null",
        "trainer.progress_bar=false",
        f"trainer.precision={precision}",
        "evaluation.max_segments=1",
    ]

    def turn() -> float:
        with tempfile.TemporaryDirectory() as folder:  # a finished run is not trained again
            start = time.perf_counter()
            words = [*command, f"hydra.run.dir={folder}/run"]
            subprocess.run(words, check=True, capture_output=True)
            return time.perf_counter() - start

    turn()
    return turn


class Worker:
    """Process that takes one implementation's turns; it is idle between them."""

    def __init__(self, name: str, path: Path | None, case: Case) -> None:
        python = sys.executable
        if path is None and name != "ours":
            python = str(OTHERS)
        paths = f"{path or ROOT}:{path}/utils:{os.environ.get('PYTHONPATH', '')}"
        self.process = subprocess.Popen(
            [python, __file__, "--worker", name, json.dumps(asdict(case))],
            env=dict(os.environ, PYTHONPATH=paths.rstrip(":")),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def turn(self) -> float:
        """Take one turn and return its seconds."""
        assert self.process.stdin
        assert self.process.stdout
        time.sleep(PAUSE_SECONDS)
        print("turn", file=self.process.stdin, flush=True)
        if line := self.process.stdout.readline():
            return float(line)
        raise SystemExit(f"bench: {self.process.args!r} failed; its error is above")


def measure(
    case: Case, chosen: dict[str, tuple[str, Path | None]], rounds: int
) -> dict[str, list[float]]:
    """Return every round's seconds for each implementation and precision; a first round is left out."""
    workers = {}
    for title, (name, path) in chosen.items():
        workers[f"{title}, float32"] = Worker(name, path, case)
        workers[f"{title}, bf16"] = Worker(name, path, replace(case, bf16=True))
    seconds: dict[str, list[float]] = {title: [] for title in workers}
    order = list(workers)
    try:
        for number in range(rounds + 1):
            order.reverse()
            for title in order:
                turn = workers[title].turn()
                if number > 0:
                    seconds[title].append(turn)
    finally:
        for worker in workers.values():
            worker.process.kill()
            worker.process.communicate()
    return seconds


def table(measured: dict[str, dict[str, list[float]]]) -> str:
    """Return a row for each case, implementation and precision: speed, and how many times as long as ours it takes."""
    lines = [
        "| case | implementation | tokens/s | time / ours (min–max) |",
        "| --- | --- | ---: | ---: |",
    ]
    for name, seconds in measured.items():
        case = CASES[name]
        tokens = case.steps * case.batch_size * case.segment
        for title, of_rounds in seconds.items():
            middle = median(of_rounds)
            speed = f"{tokens / middle:,.0f}"
            if case.work == "command":
                speed = f"{middle:.2f} s"
            precision = title.rpartition(", ")[2]
            ratio = ""
            if not title.startswith("ours"):
                ratio = ratio_of(of_rounds, seconds[f"ours, {precision}"])
            lines.append(f"| {name} | {title} | {speed} | {ratio} |")
    return "\n".join(lines)


def ratio_of(theirs: list[float], ours: list[float]) -> str:
    """Return the median of the rounds' ratios, with the lowest and the highest."""
    ratios = []
    for other, own in zip(theirs, ours, strict=True):
        ratios.append(other / own)
    return f"{median(ratios):.3f} ({min(ratios):.3f}–{max(ratios):.3f})"


def work(name: str, case: Case) -> None:
    """Take a turn for every line on standard input, and print its seconds."""
    turn = command_turns(case) if case.work == "command" else turns_of(name, case)
    for _ in sys.stdin:
        print(turn(), flush=True)


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Return the command line's options."""
    description = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser("make bench", description=description)
    add = parser.add_argument
    add("--only", default=",".join(list(CASES)[2:]), help=f"of {', '.join(CASES)}")
    add("--rounds", type=int, default=9, help="measured rounds")
    add("--against", type=Path, help="another checkout of this project; alone with ours")
    add("--original", type=Path, help="folder with the paper's mem_transformer.py")
    add("--threads", type=int, default=2)
    add("--device", default="cpu", choices=("cpu", "cuda"))
    add("--output", type=Path, help="file for all seconds, as JSON")
    return parser.parse_args(words)


def implementations(options: argparse.Namespace, case: Case) -> dict[str, tuple[str, Path | None]]:
    """Return the implementations that can do a case, with their folders, by title."""
    chosen: dict[str, tuple[str, Path | None]] = {"ours": ("ours", None)}
    if options.against:
        chosen["against"] = ("ours", options.against.resolve())
    if case.work == "command":
        return chosen
    if not options.against and OTHERS.exists():
        chosen["huggingface"] = ("huggingface", None)
        if not case.cutoffs:
            chosen["x-transformers"] = ("x-transformers", None)
    if options.original:
        chosen["original"] = ("original", options.original.resolve())
    return chosen


def main(words: Sequence[str]) -> None:
    """Measure the chosen cases and print their table; a worker answers every line on its standard input."""
    if words[:1] == ["--worker"]:
        sizes = json.loads(words[2])
        sizes["cutoffs"] = tuple(sizes["cutoffs"])
        work(words[1], Case(**sizes))
        return
    options = parse(words)
    measured = {}
    for name in options.only.split(","):
        case = replace(CASES[name], threads=options.threads, device=options.device)
        measured[name] = measure(case, implementations(options, case), options.rounds)
        print(f"bench: {name} is measured", file=sys.stderr, flush=True)
        if options.output:
            options.output.write_text(json.dumps(measured, indent=1))
    print(table(measured))
    from txl_lightning.reporting import processor

    device = processor()
    if options.device == "cuda":
        device = torch.cuda.get_device_name()
    today = datetime.date.today()
    print(f"\n- {today}; {device}; {options.threads} threads; torch {torch.__version__}")


if __name__ == "__main__":
    main(sys.argv[1:])
