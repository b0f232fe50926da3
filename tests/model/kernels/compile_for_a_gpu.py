"""Compile every kernel for a GPU that need not be there: `python -m tests.model.kernels.compile_for_a_gpu`."""

from typing import Any

import triton
from triton.backends.compiler import GPUTarget

from txl_lightning.model.kernels import triton_kernels

TARGET = GPUTarget("cuda", 90, 32)  # H100
SHARED_MEMORY = 99 * 1024  # of a block, on the smallest GPUs of recent years
FLAGS = {"CONTENT": True, "POSITION": True, "DROPOUT": True}
SIZES = {
    "bf16": {"HEAD": 41, "WIDTH": 64, "BLOCK_T": 64, "BLOCK_K": 64, "PRECISION": "tf32"},
    "fp32": {"HEAD": 64, "WIDTH": 64, "BLOCK_T": 32, "BLOCK_K": 32, "PRECISION": "ieee"},
}
TYPES = {"LOGSUM": "*fp32", "DELTA": "*fp32", "SEED": "*i64", "dropout": "fp32"}


def compiled(kernel: Any, dtype: str) -> Any:
    """One kernel, with everything switched on."""
    constants = {**SIZES[dtype], **FLAGS}

    def type_of(name: str) -> str:
        if name in constants:
            return "constexpr"
        return TYPES.get(name, f"*{dtype}" if name.isupper() else "i32")

    signature = {name: type_of(name) for name in kernel.arg_names}
    return triton.compile(triton.compiler.ASTSource(kernel, signature, constants), target=TARGET)


def check_values(kernel: Any) -> None:
    """Lengths and the strides of scores by distance, which change while a memory fills, compile nothing again."""
    specialized = [p.name for p in kernel.params if p.name in triton_kernels.VALUES and not p.do_not_specialize]
    assert not specialized, f"{kernel.__name__} is compiled again for values of {specialized}"


if __name__ == "__main__":
    for dtype in SIZES:
        for name in ("forward_kernel", "backward_queries_kernel", "backward_keys_kernel"):
            check_values(getattr(triton_kernels, name))
            used = compiled(getattr(triton_kernels, name), dtype).metadata.shared
            assert used <= SHARED_MEMORY, f"{name} needs {used} bytes of shared memory"
            print(name, dtype, used)
