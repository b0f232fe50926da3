"""Attention kernels beside eager attention: seconds and memory of forward and backward, and the largest difference.

    python -m benchmarks.kernels [--rounds N] [--output FILE]

Prints JSON: the device, and for each case, precision and kernel the median milliseconds, those of eager divided by
them (`speedup`, the median over rounds in which all kernels take turns), the peak of memory in MiB, and `error`: the
largest difference of output and gradients from eager attention in float32, divided by the largest number there. A
kernel that fails has the error's text in place of numbers. The exit status is 1 if an `error` exceeds `LARGEST_ERROR`.

On a GPU the cases have the sizes of the published base models and every kernel runs; elsewhere they are tiny, and only
eager attention has gradients.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from txl_lightning import TransformerXLConfig
from txl_lightning.model.attention import Attention
from txl_lightning.model.encodings import LayerPositions
from txl_lightning.model.positions import VisibleKeys, attention_mask

STEPS = 10  # of a round


@dataclass(frozen=True)
class AttentionCase:
    """Sizes of one attention: `segment` queries, `memory` more keys."""

    name: str
    batch_size: int
    segment: int
    memory: int
    n_head: int
    d_head: int
    dropout: float = 0.0


GPU_CASES = (
    AttentionCase("enwik8 base", 22, 512, 512, 8, 64),
    AttentionCase("enwik8 base, attention dropout", 22, 512, 512, 8, 64, dropout=0.1),
    AttentionCase("wt103 base", 60, 150, 150, 10, 41),
)
TINY_CASES = (AttentionCase("tiny", 2, 20, 12, 2, 8),)
LARGEST_ERROR = {"bfloat16": 0.05, "float32": 0.001}
PRECISIONS = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class AttentionStep:
    """Forward and backward of one attention between its projections, with all four terms.

    Args:
        case: sizes.
        dtype: of queries, keys, values and positions.
        device: type of device.
    """

    def __init__(self, case: AttentionCase, dtype: torch.dtype, device: str) -> None:
        B, T, M, H, E = case.batch_size, case.segment, case.memory, case.n_head, case.d_head
        generator = torch.Generator().manual_seed(0)

        def leaf(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(device, dtype).requires_grad_()

        sizes = {"d_model": 2, "n_head": H, "d_head": E, "attention_dropout": case.dropout}
        self.attention = Attention(TransformerXLConfig(1, **sizes)).to(device)  # type: ignore[arg-type]
        self.q_HBTE, self.kv_PHBKE = leaf(H, B, T, E), leaf(2, H, B, M + T, E)
        self.positions = LayerPositions(leaf(H, E), leaf(H, E), table_HSE=leaf(H, M + T + 1, E))
        self.visible = VisibleKeys(attention_mask(T, M, M, None, self.q_HBTE.detach()), 0, None)
        self.d_out_HBTE = leaf(H, B, T, E).detach()

    def run(self, kernel: str) -> list[Tensor]:
        """Return the output and the gradients of queries, keys and values, u, v and r."""
        out_HBTE = self.attention.attend(self.q_HBTE, self.kv_PHBKE, self.positions, self.visible, kernel)
        leaves = [x for x in (self.q_HBTE, self.kv_PHBKE, *self.positions) if x is not None]
        return [out_HBTE.detach(), *torch.autograd.grad(out_HBTE, leaves, self.d_out_HBTE)]

    def seconds(self, kernel: str, steps: int) -> float:
        """Return the time of a step."""
        wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
        wait()
        start = time.perf_counter()
        for _ in range(steps):
            self.run(kernel)
        wait()
        return (time.perf_counter() - start) / steps


def measure_kernels(
    case: AttentionCase, precision: str, kernels: list[str], device: str, rounds: int
) -> dict[str, Any]:
    """Return the results of all kernels on one case, by kernel."""
    exact = AttentionStep(case, torch.float32, device)
    exact.attention.eval()
    expected = exact.run("eager")
    step, results = AttentionStep(case, PRECISIONS[precision], device), {}
    for kernel in kernels:
        try:
            results[kernel] = {"error": _error(step, kernel, expected), "peak_mib": _peak_mib(step, kernel)}
        except Exception as error:  # the table names what does not run; the others still do
            results[kernel] = {"failed": f"{type(error).__name__}: {error}".splitlines()[0]}
    running = [kernel for kernel in kernels if "failed" not in results[kernel]]
    taken: dict[str, list[float]] = {kernel: [] for kernel in running}
    for n in range(rounds):
        for kernel in running if n % 2 else reversed(running):
            taken[kernel].append(step.seconds(kernel, STEPS))
    for kernel, values in taken.items():
        ratios = [eager / own for eager, own in zip(taken["eager"], values, strict=True)]
        results[kernel] |= {"milliseconds": 1000 * median(values), "speedup": median(ratios)}
    return results


def _error(step: AttentionStep, kernel: str, expected: list[Tensor]) -> float:
    """Return the largest relative difference from `expected`, without dropout."""
    step.attention.eval()
    differences = [
        ((x.float() - y).abs().max() / y.abs().max()).item() for x, y in zip(step.run(kernel), expected, strict=True)
    ]
    step.attention.train()
    return max(differences)


def _peak_mib(step: AttentionStep, kernel: str) -> float | None:
    """Return the peak of GPU memory above the inputs in one step; compiles what the measurement needs."""
    step.run(kernel)
    if not torch.cuda.is_available():
        return None
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step.run(kernel)
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def main() -> None:
    """Measure all cases and print them."""
    parser = argparse.ArgumentParser("python -m benchmarks.kernels", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path, help="also write the JSON to this file")
    options = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    device, cases = ("cuda", GPU_CASES) if on_gpu else ("cpu", TINY_CASES)
    kernels = ["eager", *(["flex"] if on_gpu else [])]
    name = torch.cuda.get_device_name() if on_gpu else "CPU"
    results: list[dict[str, Any]] = []
    for case, precision in product(cases, PRECISIONS if on_gpu else ["float32"]):
        found = measure_kernels(case, precision, kernels, device, options.rounds)
        results.append({"case": asdict(case), "precision": precision, "kernels": found})
        text = json.dumps({"device": name, "torch": torch.__version__, "results": results}, indent=1)
        if options.output:  # after every case: the first call of a kernel compiles it, and a time limit may follow
            options.output.write_text(text + "\n")
    print(text)
    if found := wrong(results):
        raise SystemExit("differ from eager attention in float32: " + ", ".join(found))


def wrong(results: list[dict[str, Any]]) -> list[str]:
    """Return the kernels, with case and precision, whose error is too large or no number."""
    return [
        f"{kernel} ({of_case['case']['name']}, {of_case['precision']}: {values['error']:.2g})"
        for of_case in results
        for kernel, values in of_case["kernels"].items()
        if "error" in values and not values["error"] <= LARGEST_ERROR[of_case["precision"]]
    ]


if __name__ == "__main__":
    main()
