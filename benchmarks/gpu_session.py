"""Show what a GPU does with this project, in seven minutes (`benchmarks/gpu.sh`): the most deciding parts first.

    compiled    30 steps of enwik8 base through torch.compile, with the number of graphs and breaks
    attention   the scores as written, torch's kernel and ours: forward, forward and backward, distance of the
                gradients from those of float32
    relative    as `compiled`, with the kernel of `examples/kernels` (`Attention.kernel`)
    wt103-relative, wt103-compiled   the base model with its adaptive softmax
    others      ours, Hugging Face's class and x-transformers in turns at the size of enwik8 base, where `make bench`
                made their environment
    pairs       with and without recurrence, the laptop's and the night's sizes: tokens/s of `txl train`
    resume      a training that is killed and resumed: equal to one that was not?
    tests       the tests that need a GPU
    enwik8, wt103, enwik8-32, lstm   uncompiled, with the 15 kernels that take most time; `-32`: in float32
    products    the product of positions with 1024, 1025 and 1032 distances
    training    a training in the time that is left, with its curve

Each part is a process with a limit and a log. `summary.json` has its result as soon as it ends, so that a session that
is cut short leaves what it has measured. Steps are of random tokens: they need no corpus.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.bench import CASES, ROOT
from txl_lightning import Memory, compose
from txl_lightning.evaluation.models import make_model
from txl_lightning.files import write_json
from txl_lightning.model import attention
from txl_lightning.model.layers import Dropout
from txl_lightning.model.positions import VisibleKeys
from txl_lightning.reporting import processor
from txl_lightning.training.optimizers import make_optimizer
from txl_lightning.training.scoring import compiled as compile_score

GRACE_SECONDS = 30  # for a stopped part to save and end
TINY = (
    "profile=smoke",
    "data=python-packages",
    "trainer.num_threads=1",
    "trainer.val_max_segments=5",
)
WT103_SHARES = (
    0.935,
    0.031,
    0.032,
    0.002,
)  # of the words of its training text in the clusters of the base model
ENWIK8, WT103 = ("experiment=paper/enwik8_base",), ("experiment=paper/wt103_base",)


def timed(work: Callable[[], Any], repeats: int) -> float:
    """Return the median seconds of a call, after three that are not timed."""
    seconds = []
    for _ in range(repeats + 3):
        begun = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    return median(seconds[3:])


def products(device: str, tiny: bool) -> dict[str, Any]:
    """Milliseconds of a layer's product of queries and distances, forward and backward."""
    H, rows, E, dtype = (2, 8, 8, torch.float32) if tiny else (8, 22 * 512, 64, torch.bfloat16)
    found = {}
    for S in (1024, 1025, 1032):
        q, r = (
            torch.randn(H, n, E, device=device, dtype=dtype, requires_grad=True) for n in (rows, S)
        )
        gradient = torch.randn(H, rows, S, device=device, dtype=dtype)
        found[f"S={S}"] = 1e3 * timed(
            lambda q=q, r=r, g=gradient: (q @ r.mT).backward(g), 3 if tiny else 30
        )  # type: ignore[misc]
    return found


def attention_alone(device: str, tiny: bool) -> dict[str, Any]:
    """Milliseconds of a layer, and the largest distance of its gradients from those of float32, as a share."""
    H, B, T, E = (2, 2, 8, 6) if tiny else (8, 22, 512, 64)
    shapes = ((H, B, T, E), (H, B, 2 * T, E), (H, 2 * T + 1, E), (H, E), (H, E), (H, B, 2 * T, E))
    leaves = [torch.randn(shape, device=device).requires_grad_() for shape in shapes]
    mask_TK = torch.full((T, 2 * T), -math.inf, device=device).triu(T + 1)
    visible = VisibleKeys(mask_TK, sees_memory=True)

    def as_written(*x: Tensor) -> Tensor:
        return (attention.scores(*x[:5]) + mask_TK.to(x[0].dtype)).softmax(-1) @ x[5]

    def gradients(kernel: Callable[..., Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
        inputs = [leaf.to(dtype) for leaf in leaves]
        return torch.autograd.grad(kernel(*inputs).float().square().mean(), leaves)

    kernels: dict[str, Callable[..., Tensor]] = {
        "as written": as_written,
        "kernel": lambda q, k, r, u, v, values: attention.attend_with_kernel(
            attention.AttentionInputs(q, k, values, r, u, v, None, "abcd", visible), Dropout(0.0)
        ),
    }
    if device == "cuda" or os.environ.get(
        "TRITON_INTERPRET"
    ):  # torch for the CPU comes without Triton
        from examples.kernels import relative

        kernels["relative"] = lambda *x: relative.attend(*x, visible, Dropout(0.0))
    exact, half, found = (
        gradients(as_written, torch.float32),
        torch.float32 if tiny else torch.bfloat16,
        {},
    )
    for name, kernel in kernels.items():
        pairs = zip(gradients(kernel, half), exact, strict=True)
        far = max(float((ours - theirs).norm() / theirs.norm()) for ours, theirs in pairs)
        n, inputs = 2 if tiny else 20, [leaf.detach().to(half) for leaf in leaves]
        forward = timed(lambda k=kernel, x=inputs: k(*x), n)  # type: ignore[misc]
        both = timed(lambda k=kernel: gradients(k, half), n)  # type: ignore[misc]
        found[name] = {"forward_ms": 1e3 * forward, "ms": 1e3 * both, "distance": far}
        print(name, found[name], flush=True)
    return found


def use_relative_kernel(model: Any) -> None:
    """Let all attentions of a model compute by the kernel of `examples/kernels`."""
    from examples.kernels import relative

    for module in model.modules():
        if isinstance(module, attention.Attention):
            module.kernel = relative.attend


def steps(
    device: str,
    tiny: bool,
    options: tuple[str, ...],
    compiled: bool = False,
    V: int = 205,
    relative: bool = False,
) -> dict[str, Any]:
    """Tokens/s of 30 training steps on random tokens, peak memory, and the kernels or graphs."""
    if tiny:
        options = (
            *options,
            "data.batch_size=2",
            "data.segment_len=8",
            f"model.cutoffs={[20, 40] if V > 205 else []}",
        )
        options, V = (
            (
                *options,
                *(("model.d_model=8",) if "model=lstm" in options else ("model=txl_smoke",)),
            ),
            205,
        )
    config = compose(*options)
    model = make_model(config, V).to(device)
    half = config.trainer.precision == "bf16-mixed"
    optimizer, schedule = make_optimizer(model, config.optimizer, 1000, fused=True)
    B, T, backend = (
        config.data.batch_size,
        config.data.segment_len,
        "inductor" if device == "cuda" else "aot_eager",
    )
    score = compile_score(model.score, backend) if compiled else model.score
    if relative and device == "cuda":
        use_relative_kernel(model)
    window = random_tokens((0, *config.model.cutoffs, V), (B, T + 1))
    moved, state = window.to(device), model.start_memory(B, static=True)
    if isinstance(state, Memory):  # full from the first step on: a training does not compile before
        state = replace(state, filled=state.length)
    known = {"known_targets_BT": window[:, 1:]} if config.model.cutoffs else {}

    def step() -> None:
        nonlocal state
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=half):
            nll_BT, state = score(moved[:, :-1], moved[:, 1:], state, **known)
        nll_BT.mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        schedule.step()

    seconds = timed(step, 2 if tiny else 30)
    found: dict[str, Any] = {"tokens_per_second": B * T / seconds, "ms": 1e3 * seconds}
    if device == "cuda":
        found["peak_memory_bytes"] = torch.cuda.max_memory_allocated()
    if compiled:
        stats = torch._dynamo.utils.counters
        return {
            **found,
            "graphs": stats["stats"]["unique_graphs"],
            "breaks": dict(stats["graph_break"]),
        }
    with torch.profiler.profile() as profiler:
        step()
    most = sorted(
        profiler.key_averages(), key=lambda e: e.self_device_time_total or e.self_cpu_time_total
    )[:-16:-1]
    return {
        **found,
        "kernels": {e.key[:80]: [e.count, e.self_device_time_total / 1e3] for e in most},
    }


def random_tokens(edges: tuple[int, ...], shape: tuple[int, int]) -> Tensor:
    """Draw tokens: clusters as often as WikiText-103's words are in them, evenly within each."""
    share = torch.tensor(WT103_SHARES if len(edges) > 2 else [1.0])
    first, size = torch.tensor(edges[:-1]), torch.tensor(edges).diff()
    cluster = share[: len(size)].multinomial(shape[0] * shape[1], replacement=True)
    return (first[cluster] + (torch.rand(len(cluster)) * size[cluster]).long()).view(shape)


def resume(output: Path, device: str) -> dict[str, Any]:
    """Train, and train again with a kill in the middle; return both results."""
    words = [
        *train_words(device, True),
        "trainer.max_steps=100",
        "checkpoint.every_n_steps=20",
        "resume=auto",
    ]
    whole, killed = output / "whole", output / "killed"
    subprocess.run([*words, f"hydra.run.dir={whole}"], cwd=ROOT, check=True)
    again = [*words, f"hydra.run.dir={killed}"]
    with subprocess.Popen(again, cwd=ROOT) as process:
        while process.poll() is None and not (killed / "checkpoints/last.ckpt").exists():
            time.sleep(0.1)
        process.kill()
    subprocess.run(again, cwd=ROOT, check=True)
    losses = [
        json.loads((folder / "metrics.json").read_text())["val/nll"] for folder in (whole, killed)
    ]
    return {"val/nll": losses, "equal": losses[0] == losses[1]}


def others(output: Path, device: str, tiny: bool) -> dict[str, Any]:
    """Return tokens/s of each implementation and precision, in turns; ours alone without `make bench`'s environment."""
    name, words = (
        "tiny" if tiny else "gpu",
        [sys.executable, "-m", "benchmarks.bench", "--device", device],
    )
    file = output / "turns.json"
    subprocess.run(
        [*words, "--only", name, "--rounds", "1" if tiny else "5", "--output", file],
        cwd=ROOT,
        check=True,
    )
    case = CASES[name]
    tokens = case.steps * case.batch_size * case.segment
    return {
        title: tokens / median(seconds)
        for title, seconds in json.loads(file.read_text())[name].items()
    }


def pairs(output: Path, device: str, tiny: bool) -> dict[str, Any]:
    """Return tokens/s of trainings with and without recurrence, without validation; the text is that of Python."""
    found = {}
    for profile in ("laptop", "night"):
        for memory in ("carried", "off"):
            folder = output / f"{profile}-{memory}"
            words = [
                f"profile={profile}",
                "data=python-packages",
                f"trainer={'gpu' if device == 'cuda' else 'cpu'}",
            ]
            words += [
                *(["memory=off"] if memory == "off" else []),
                f"trainer.max_steps={3 if tiny else 300}",
            ]
            words += ["trainer.val_max_segments=1", "evaluation.max_segments=1", "logger=none"]
            command = [
                sys.executable,
                "-m",
                "txl_lightning.cli",
                "train",
                *words,
                f"hydra.run.dir={folder}",
            ]
            subprocess.run([*command, "trainer.progress_bar=false"], cwd=ROOT, check=True)
            metrics = json.loads((folder / "metrics.json").read_text())
            found[folder.name] = metrics["tokens"] / metrics["seconds"]
    return found


def train_words(device: str, tiny: bool) -> list[str]:
    """Return the command of a training on text of this installation, or on enwik8 if TXL_DATA has it."""
    at_hand = (Path(os.environ.get("TXL_DATA", "")) / "enwik8").exists()
    of_paper = (
        *ENWIK8,
        *(() if at_hand else ("data=python-packages",)),
        "trainer.val_max_segments=50",
    )
    options = (*TINY, f"trainer={'gpu' if device == 'cuda' else 'cpu'}") if tiny else of_paper
    return [
        sys.executable,
        "-m",
        "txl_lightning.cli",
        "train",
        *options,
        "logger=csv",
        "trainer.progress_bar=false",
    ]


PARTS: dict[
    str, tuple[int, Callable[[Path, str, bool], dict[str, Any]]]
] = {  # seconds at most, and the part
    "compiled": (90, lambda _, device, tiny: steps(device, tiny, ENWIK8, compiled=True)),
    "attention": (60, lambda _, device, tiny: attention_alone(device, tiny)),
    "relative": (
        90,
        lambda _, device, tiny: steps(device, tiny, ENWIK8, compiled=True, relative=True),
    ),
    "others": (100, others),
    "pairs": (100, pairs),
    "wt103-relative": (
        120,
        lambda _, device, tiny: steps(device, tiny, WT103, True, 267_735, relative=True),
    ),
    "wt103-compiled": (
        120,
        lambda _, device, tiny: steps(device, tiny, WT103, compiled=True, V=267_735),
    ),
    "resume": (120, lambda output, device, _: resume(output, device)),
    "tests": (100, lambda *_: {}),
    "enwik8": (60, lambda _, device, tiny: steps(device, tiny, ENWIK8)),
    "wt103": (60, lambda _, device, tiny: steps(device, tiny, WT103, V=267_735)),
    "enwik8-32": (
        40,
        lambda _, device, tiny: steps(device, tiny, (*ENWIK8, "trainer.precision=32-true")),
    ),
    "lstm": (
        40,
        lambda _, device, tiny: steps(
            device, tiny, ("model=lstm", "trainer=gpu", "data.batch_size=60")
        ),
    ),
    "products": (40, lambda _, device, tiny: products(device, tiny)),
    "training": (10_000, lambda *_: {}),
}


def session(output: Path, seconds: float, dry_run: bool) -> list[dict[str, Any]]:
    """Run the parts one after the other and return their records."""
    device, started, records = (
        "cpu" if dry_run else "cuda",
        time.monotonic(),
        list[dict[str, Any]](),
    )
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    machine = {
        "gpu": gpu,
        "cpu": processor(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }
    facts = {
        "date": datetime.datetime.now().isoformat(timespec="seconds"),
        "dry_run": dry_run,
        **machine,
    }
    own = [
        sys.executable,
        "-m",
        "benchmarks.gpu_session",
        "--output",
        str(output),
        *["--dry-run"] * dry_run,
        "--part",
    ]
    pytest = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "gpu",
        "tests/devices",
    ]
    last = [*train_words(device, dry_run), f"hydra.run.dir={output / 'training'}"]
    last += (
        ["trainer.max_steps=20"]
        if dry_run
        else ["trainer.max_steps=3000", "trainer.val_every_n_steps=500"]
    )
    for name, (limit, _) in PARTS.items():
        words = {"tests": pytest, "training": last}.get(name, [*own, name])
        left = min(
            5 * limit if dry_run else limit, started + seconds - GRACE_SECONDS - time.monotonic()
        )
        record: dict[str, Any] = {"part": name, "status": "left out: no time"}
        if left > 0:
            begun = time.monotonic()
            with (output / f"{name}.log").open("w") as log:
                process = subprocess.Popen(
                    words, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
                )
            record["status"] = ended(process, left)
            record["seconds"] = round(time.monotonic() - begun, 1)
        for result in (output / f"{name}.json", output / name / "metrics.json"):
            record |= json.loads(result.read_text()) if result.exists() else {}
        records.append(record)
        write_json(output / "summary.json", {**facts, "parts": records})
        print(
            name,
            record["status"],
            *(f"{key}={record[key]:,.4g}" for key in ("ms", "tokens_per_second") if key in record),
        )
    return records


def ended(process: subprocess.Popen[bytes], limit: float) -> str:
    """Wait for the end of a part; after the limit ask it to end, and then kill it. Return how it ended."""
    for number, seconds in ((signal.SIGTERM, limit), (signal.SIGKILL, GRACE_SECONDS)):
        try:
            return f"{'' if seconds == limit else 'stopped after its time, '}exit {process.wait(seconds)}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, number)  # with the trainings that the part started
    return f"killed after its time, exit {process.wait()}"


def main() -> int:
    """Run the session or one part; return 1 if a part failed, 2 without a GPU."""
    parser = argparse.ArgumentParser(
        "benchmarks/gpu.sh", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--output", type=Path, help="folder of the results; default: outputs/gpu-DATE-TIME"
    )
    parser.add_argument("--minutes", type=float, default=7, help="time for everything")
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on the CPU")
    parser.add_argument("--part", help="run one part alone")
    options = parser.parse_args()
    if not options.dry_run and not torch.cuda.is_available():
        print("gpu.sh: torch finds no GPU; --dry-run runs tiny sizes on the CPU", file=sys.stderr)
        return 2
    output = (
        options.output or ROOT / "outputs" / f"gpu-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    ).resolve()
    output.mkdir(parents=True, exist_ok=True)
    if options.part is None:
        records = session(output, 60 * options.minutes, options.dry_run)
        print(output)
        return int(
            any(
                record["status"].startswith("exit ") and record["status"] != "exit 0"
                for record in records
            )
        )
    measured = PARTS[options.part][1](output, "cpu" if options.dry_run else "cuda", options.dry_run)
    write_json(output / f"{options.part}.json", measured)
    return 0


if __name__ == "__main__":
    sys.exit(main())
