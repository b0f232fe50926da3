"""Compile the Triton kernels to machine code of GPUs, without a GPU: Triton's compiler and the ptxas that it brings.

compiled_relative        prints as JSON, for each kernel and case, bytes of shared memory and bytes of spilled registers
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from examples.kernels import relative

KERNELS = ("_forward", "_backward_of_queries", "_backward_of_keys", "_backward_of_distances")
OPTIONAL = {"mask", "first", "seed", "bias", "bias_grad"}
OF_INPUTS = {"q", "k", "values", "r", "heads", "output", "q_grad", "k_grad", "values_grad"}
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Case:
    """A GPU (90: H100, 80: A100), a type, E, and whether masks, dropout and biases are given."""

    gpu: int
    dtype: str
    E: int
    everything: bool

    def compile(self, name: str) -> tuple[int, int]:
        """Return bytes of shared memory and of the stack of each thread, to which registers are spilled."""
        kernel, absent = getattr(relative, name), set() if self.everything else OPTIONAL
        constants = relative.constants(TYPES[self.dtype], self.E, "abcd", self.gpu >= 90)
        options = {key: constants.pop(key) for key in ("num_warps", "num_stages")}
        constants |= dict.fromkeys(absent & set(kernel.arg_names))
        constants = {key: value for key, value in constants.items() if key in kernel.arg_names}
        signature = {key: "constexpr" if key in constants else self.type_of(key) for key in kernel.arg_names}
        aligned = [n for n, key in enumerate(kernel.arg_names) if self.is_aligned(key, signature[key])]
        attributes = {(n,): [["tt.divisibility", 16]] for n in aligned}
        source = ASTSource(kernel, signature, constants, attributes)
        compiled = triton.compile(source, target=GPUTarget("cuda", self.gpu, 32), options=options)
        return compiled.metadata.shared, stack_of(compiled.asm["cubin"])

    def type_of(self, argument: str) -> str:
        """Return the type of a kernel's argument as Triton writes it."""
        if argument in OF_INPUTS:
            return f"*{self.dtype}"
        if argument in ("scale", "p"):
            return "fp32"
        if re.fullmatch(r"[qk]_[hbtk]|(mask|first)_b|[HBTK]", argument):
            return "i32"
        return {"first": "*i32", "seed": "*i64"}.get(argument, "*fp32")

    def is_aligned(self, argument: str, of_type: str) -> bool:
        """Return whether a pointer or stride is a multiple of 16, as Triton finds when it is called."""
        return of_type.startswith("*") or (self.E % 16 == 0 and argument[1:] in ("_h", "_b", "_t"))


def stack_of(cubin: bytes) -> int:
    """Return bytes of the stack of a thread, by the tool that Triton brings."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        told = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    found = re.search(r"STACK:(\d+)", told.stdout)
    assert found is not None
    return int(found[1])


CASES = [Case(90, "bf16", 64, False), Case(90, "bf16", 41, True), Case(90, "fp32", 64, False)]
CASES += [Case(80, "bf16", 64, False), Case(80, "fp16", 41, True), Case(80, "bf16", 128, True)]


def main() -> None:
    """Compile every kernel for every case."""
    print(json.dumps([[name, *vars(case).values(), *case.compile(name)] for case in CASES for name in KERNELS]))


if __name__ == "__main__":
    main()
