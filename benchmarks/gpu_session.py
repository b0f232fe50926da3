"""Show what a GPU does with this project, in seven minutes (`benchmarks/gpu.sh`): the most important parts first.

    compiled    30 steps at enwik8 base's size through torch.compile, with the number of graphs and breaks
    attention   the scores as written, torch's kernel and ours: forward, forward and backward, and how far the
                gradients are from float32's
    relative    as `compiled`, with the kernel in `examples/kernels` (`Attention.kernel`)
    wt103-relative, wt103-compiled   the base model with its adaptive softmax
    others      ours, Hugging Face's class and x-transformers in turns at enwik8 base's size, where `make bench`
                made their environment
    pairs       with and without recurrence, at laptop's and night's sizes: tokens/s in `txl train`
    resume      a training that is killed and resumed: equal to one that was not?
    tests       the tests that need a GPU
    enwik8, wt103, lstm   uncompiled, with the 15 kernels that take most time
    training    a training for the time that is left, with its curve

Each part is a process with a limit and a log. `summary.json` has its result as soon as it ends, so that a session that
is cut short leaves what it has measured. Steps read random tokens: they need no corpus.
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
TXL = (sys.executable, "-m", "txl_lightning.cli")
TINY = (
    "profile=smoke",
    "data=python-packages",
    "trainer.num_threads=1",
    "trainer.val_max_segments=5",
)
# Share of WikiText-103's training words in each cluster of the base model.
WT103_SHARES = (0.935, 0.031, 0.032, 0.002)
ENWIK8 = "experiment=paper/enwik8_base"
WT103 = "experiment=paper/wt103_base"


def timed(work: Callable[[], Any], repeats: int) -> float:
    """Return a call's median seconds, after three untimed calls."""
    seconds = []
    for _ in range(repeats + 3):
        begun = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    return median(seconds[3:])


def attention_kernels(device: str, visible: VisibleKeys) -> dict[str, Callable[..., Tensor]]:
    """Return attention functions (queries, keys, r, u, v, values): as written, torch's kernel, `examples`' kernel."""

    def as_written(*x: Tensor) -> Tensor:
        scores = attention.scores(*x[:5]) + visible.mask_TK.to(x[0].dtype)
        return scores.softmax(-1) @ x[5]

    def kernel(q: Tensor, k: Tensor, r: Tensor, u: Tensor, v: Tensor, values: Tensor) -> Tensor:
        inputs = attention.AttentionInputs(q, k, values, r, u, v, None, "abcd", visible)
        return attention.attend_with_kernel(inputs, Dropout(0.0))

    kernels: dict[str, Callable[..., Tensor]] = {"as written": as_written, "kernel": kernel}
    # torch for the CPU comes without Triton.
    if device == "cuda" or os.environ.get("TRITON_INTERPRET"):
        from examples.kernels import relative

        kernels["relative"] = lambda *x: relative.attend(*x, visible, Dropout(0.0))
    return kernels


def attention_alone(device: str, tiny: bool) -> dict[str, Any]:
    """Milliseconds for a layer, and how far its gradients are from float32's at most, as a share."""
    H, B, T, E = (2, 2, 8, 6) if tiny else (8, 22, 512, 64)
    half = torch.float32 if tiny else torch.bfloat16
    repeats = 2 if tiny else 20
    shapes = (
        (H, B, T, E),
        (H, B, 2 * T, E),
        (H, 2 * T + 1, E),
        (H, E),
        (H, E),
        (H, B, 2 * T, E),
    )
    leaves = [torch.randn(shape, device=device).requires_grad_() for shape in shapes]
    mask_TK = torch.full((T, 2 * T), -math.inf, device=device).triu(T + 1)
    kernels = attention_kernels(device, VisibleKeys(mask_TK, sees_memory=True))

    def gradients(kernel: Callable[..., Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
        inputs = [leaf.to(dtype) for leaf in leaves]
        loss = kernel(*inputs).float().square().mean()
        return torch.autograd.grad(loss, leaves)

    exact = gradients(kernels["as written"], torch.float32)
    inputs = [leaf.detach().to(half) for leaf in leaves]
    measured = {}
    for name, kernel in kernels.items():
        distances = []
        for ours, theirs in zip(gradients(kernel, half), exact, strict=True):
            distances.append(float((ours - theirs).norm() / theirs.norm()))
        forward = timed(lambda kernel=kernel: kernel(*inputs), repeats)  # type: ignore[misc]
        both = timed(lambda kernel=kernel: gradients(kernel, half), repeats)  # type: ignore[misc]
        measured[name] = {
            "forward_ms": 1e3 * forward,
            "ms": 1e3 * both,
            "distance": max(distances),
        }
        print(name, measured[name], flush=True)
    return measured


def use_relative_kernel(model: Any) -> None:
    """Let all attentions in a model compute by the kernel in `examples/kernels`."""
    from examples.kernels import relative

    for module in model.modules():
        if isinstance(module, attention.Attention):
            module.kernel = relative.attend


def training_step(device: str, options: list[str], V: int, compiled: bool, relative: bool) -> Any:
    """Return the number of tokens in a training step on random tokens, and a function that does one."""
    config = compose(*options)
    B = config.data.batch_size
    T = config.data.segment_len
    cutoffs = config.model.cutoffs
    model = make_model(config, V).to(device)
    optimizer, schedule = make_optimizer(model, config.optimizer, 1000, fused=True)
    score = model.score
    if compiled:
        score = compile_score(score, "inductor" if device == "cuda" else "aot_eager")
    if relative and device == "cuda":
        use_relative_kernel(model)
    window = random_tokens((0, *cutoffs, V), (B, T + 1))
    moved = window.to(device)
    known = {"known_targets_BT": window[:, 1:]} if cutoffs else {}
    state = model.start_memory(B, static=True)
    if isinstance(state, Memory):  # full from the first step on: a training does not compile before
        state = replace(state, filled=state.length)
    half = config.trainer.precision == "bf16-mixed"

    def step() -> None:
        nonlocal state
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=half):
            nll_BT, state = score(moved[:, :-1], moved[:, 1:], state, **known)
        nll_BT.mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        schedule.step()

    return B * T, step


def steps(
    device: str,
    tiny: bool,
    *options: str,
    compiled: bool = False,
    V: int = 205,
    relative: bool = False,
) -> dict[str, Any]:
    """Tokens/s in 30 training steps on random tokens, peak memory, and the kernels or graphs."""
    words = list(options)
    if tiny:
        cutoffs = [20, 40] if V > 205 else []
        words += ["data.batch_size=2", "data.segment_len=8", f"model.cutoffs={cutoffs}"]
        words.append("model.d_model=8" if "model=lstm" in words else "model=txl_smoke")
        V = 205
    tokens, step = training_step(device, words, V, compiled, relative)
    seconds = timed(step, 2 if tiny else 30)
    measured: dict[str, Any] = {"tokens_per_second": tokens / seconds, "ms": 1e3 * seconds}
    if device == "cuda":
        measured["peak_memory_bytes"] = torch.cuda.max_memory_allocated()
    if compiled:
        counters = torch._dynamo.utils.counters
        measured["graphs"] = counters["stats"]["unique_graphs"]
        measured["breaks"] = dict(counters["graph_break"])
    else:
        measured["kernels"] = slowest_kernels(step)
    return measured


def slowest_kernels(step: Callable[[], None]) -> dict[str, Any]:
    """Return calls and milliseconds for the 15 kernels that take most time in a step."""
    with torch.profiler.profile() as profiler:
        step()

    def time_of(kernel: Any) -> float:
        return kernel.self_device_time_total or kernel.self_cpu_time_total

    kernels = {}
    for kernel in sorted(profiler.key_averages(), key=time_of, reverse=True)[:15]:
        kernels[kernel.key[:80]] = [kernel.count, kernel.self_device_time_total / 1e3]
    return kernels


def random_tokens(edges: tuple[int, ...], shape: tuple[int, int]) -> Tensor:
    """Draw tokens: clusters as often as WikiText-103's words are in them, evenly within each."""
    first = torch.tensor(edges[:-1])
    size = torch.tensor(edges).diff()
    shares = torch.tensor(WT103_SHARES[: len(size)] if len(size) > 1 else [1.0])
    n = math.prod(shape)
    cluster = shares.multinomial(n, replacement=True)
    within = (torch.rand(n) * size[cluster]).long()
    return (first[cluster] + within).view(shape)


def resume(output: Path, device: str) -> dict[str, Any]:
    """Train, and train again with a kill in the middle; return both results."""
    words = [
        *train_words(device, True),
        "trainer.max_steps=100",
        "checkpoint.every_n_steps=20",
        "resume=auto",
    ]
    whole = output / "whole"
    killed = output / "killed"
    subprocess.run([*words, f"hydra.run.dir={whole}"], cwd=ROOT, check=True)
    again = [*words, f"hydra.run.dir={killed}"]
    with subprocess.Popen(again, cwd=ROOT) as process:
        while process.poll() is None and not (killed / "checkpoints/last.ckpt").exists():
            time.sleep(0.1)
        process.kill()
    subprocess.run(again, cwd=ROOT, check=True)
    losses = []
    for folder in (whole, killed):
        losses.append(json.loads((folder / "metrics.json").read_text())["val/nll"])
    return {"val/nll": losses, "equal": losses[0] == losses[1]}


def others(output: Path, device: str, tiny: bool) -> dict[str, Any]:
    """Return tokens/s for each implementation and precision, in turns; only ours without `make bench`'s environment."""
    name = "tiny" if tiny else "gpu"
    file = output / "turns.json"
    command = [
        sys.executable,
        "-m",
        "benchmarks.bench",
        f"--device={device}",
        f"--only={name}",
        f"--rounds={1 if tiny else 5}",
        f"--output={file}",
    ]
    subprocess.run(command, cwd=ROOT, check=True)
    case = CASES[name]
    tokens = case.steps * case.batch_size * case.segment
    speeds = {}
    for title, seconds in json.loads(file.read_text())[name].items():
        speeds[title] = tokens / median(seconds)
    return speeds


def pairs(output: Path, device: str, tiny: bool) -> dict[str, Any]:
    """Return tokens/s with and without recurrence, without validation; the text is python-packages."""
    trainer = "gpu" if device == "cuda" else "cpu"
    speeds = {}
    for profile in ("laptop", "night"):
        for memory, group in (("carried", "on"), ("off", "off")):
            folder = output / f"{profile}-{memory}"
            words = (
                f"profile={profile}",
                "data=python-packages",
                f"memory={group}",
                f"trainer={trainer}",
                f"trainer.max_steps={3 if tiny else 300}",
                "trainer.val_max_segments=1",
                "trainer.progress_bar=false",
                "evaluation.max_segments=1",
                "logger=none",
                f"hydra.run.dir={folder}",
            )
            subprocess.run([*TXL, "train", *words], cwd=ROOT, check=True)
            metrics = json.loads((folder / "metrics.json").read_text())
            speeds[folder.name] = metrics["tokens"] / metrics["seconds"]
    return speeds


def train_words(device: str, tiny: bool) -> list[str]:
    """Return a training command on this installation's text, or on enwik8 if TXL_DATA has it."""
    words = [*TXL, "train"]
    if tiny:
        words += [*TINY, f"trainer={'gpu' if device == 'cuda' else 'cpu'}"]
    else:
        words += [ENWIK8, "trainer.val_max_segments=50"]
        if not (Path(os.environ.get("TXL_DATA", "")) / "enwik8").exists():
            words.append("data=python-packages")
    return [*words, "logger=csv", "trainer.progress_bar=false"]


def part(name: str, output: Path, device: str, tiny: bool) -> dict[str, Any]:
    """Run a part that is no separate command, and return what it measured."""
    base, _, way = name.partition("-")
    if base in ("compiled", "relative"):
        base, way = "enwik8", base
    if base == "attention":
        return attention_alone(device, tiny)
    if base == "others":
        return others(output, device, tiny)
    if base == "pairs":
        return pairs(output, device, tiny)
    if base == "resume":
        return resume(output, device)
    if base == "lstm":
        return steps(device, tiny, "model=lstm", "trainer=gpu", "data.batch_size=60")
    experiment, V = {"enwik8": (ENWIK8, 205), "wt103": (WT103, 267_735)}[base]
    return steps(device, tiny, experiment, compiled=way != "", V=V, relative=way == "relative")


PARTS = {  # seconds at most
    "compiled": 90,
    "attention": 60,
    "relative": 90,
    "others": 100,
    "pairs": 100,
    "wt103-relative": 120,
    "wt103-compiled": 120,
    "resume": 120,
    "tests": 100,
    "enwik8": 60,
    "wt103": 60,
    "lstm": 40,
    "training": 10_000,
}


def command_of(name: str, output: Path, dry_run: bool) -> list[str]:
    """Return a part's command."""
    python = [sys.executable, "-m"]
    if name == "tests":
        return [*python, "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", "tests/devices"]
    if name == "training":
        words = train_words("cpu" if dry_run else "cuda", dry_run)
        words.append(f"hydra.run.dir={output / 'training'}")
        if dry_run:
            return [*words, "trainer.max_steps=20"]
        return [*words, "trainer.max_steps=3000", "trainer.val_every_n_steps=500"]
    words = [*python, "benchmarks.gpu_session", "--output", str(output), "--part", name]
    if dry_run:
        words.append("--dry-run")
    return words


def run_part(name: str, output: Path, limit: float, dry_run: bool) -> dict[str, Any]:
    """Run a part within its time, and return its record."""
    if limit <= 0:
        return {"part": name, "status": "left out: no time"}
    begun = time.monotonic()
    with (output / f"{name}.log").open("w") as log:
        process = subprocess.Popen(
            command_of(name, output, dry_run),
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    status = ended(process, limit)
    seconds = round(time.monotonic() - begun, 1)
    record = {"part": name, "status": status, "seconds": seconds}
    for result in (output / f"{name}.json", output / name / "metrics.json"):
        if result.exists():
            record.update(json.loads(result.read_text()))
    return record


def session(output: Path, seconds: float, dry_run: bool) -> list[dict[str, Any]]:
    """Run the parts one after the other and return their records."""
    deadline = time.monotonic() + seconds - GRACE_SECONDS
    summary: dict[str, Any] = {
        "date": datetime.datetime.now().isoformat(timespec="seconds"),
        "dry_run": dry_run,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cpu": processor(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "parts": [],
    }
    for name, limit in PARTS.items():
        most = 5 * limit if dry_run else limit
        record = run_part(name, output, min(most, deadline - time.monotonic()), dry_run)
        summary["parts"].append(record)
        write_json(output / "summary.json", summary)
        print(name, record["status"], record.get("tokens_per_second", ""))
    return summary["parts"]


def ended(process: subprocess.Popen[bytes], limit: float) -> str:
    """Wait until a part ends; after the limit ask it to end, and then kill it. Return how it ended."""
    try:
        return f"exit {process.wait(limit)}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)  # with the trainings that the part started
    try:
        return f"stopped after its time, exit {process.wait(GRACE_SECONDS)}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    return f"killed after its time, exit {process.wait()}"


def main() -> int:
    """Run the session or one part; return 1 if a part failed, 2 without a GPU."""
    description = (__doc__ or "").partition("\n")[0]
    now = f"{datetime.datetime.now():%Y%m%d-%H%M%S}"
    parser = argparse.ArgumentParser("benchmarks/gpu.sh", description=description)
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "outputs" / f"gpu-{now}",
        help="folder of the results; default: outputs/gpu-DATE-TIME",
    )
    parser.add_argument("--minutes", type=float, default=7, help="time for everything")
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on the CPU")
    parser.add_argument("--part", help="run one part alone")
    options = parser.parse_args()
    if not options.dry_run and not torch.cuda.is_available():
        print("gpu.sh: torch finds no GPU; --dry-run runs tiny sizes on the CPU", file=sys.stderr)
        return 2
    output = options.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    if options.part is not None:
        device = "cpu" if options.dry_run else "cuda"
        measured = part(options.part, output, device, options.dry_run)
        write_json(output / f"{options.part}.json", measured)
        return 0
    records = session(output, 60 * options.minutes, options.dry_run)
    print(output)
    for record in records:
        if record["status"].startswith("exit ") and record["status"] != "exit 0":
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
