"""Description of the machine, stated beside every speed."""

from __future__ import annotations

import platform
import re
from pathlib import Path

INFORMATION = Path("/proc/cpuinfo")
GPU_INFORMATION = Path("/proc/driver/nvidia/gpus")
BFLOAT16 = {"avx512_bf16": "AVX512-BF16", "amx_bf16": "AMX"}  # instructions for products in bfloat16, by flag of Linux


def processor() -> str:
    """Return the model of the CPU, and on Linux its instructions for bfloat16: virtual machines hide some."""
    text = INFORMATION.read_text() if INFORMATION.exists() else ""
    found = re.search(r"model name\s*: (.+)", text)
    model = found[1] if found else platform.processor() or platform.machine()
    flags = re.search(r"flags\s*: (.+)", text)
    names = [name for flag, name in BFLOAT16.items() if flags and flag in flags[1].split()]
    return f"{model} with {' and '.join(names)}" if names else model


def gpus() -> list[str]:
    """Return the models of NVIDIA's GPUs as the driver names them, without starting CUDA: a process forks after it."""
    texts = [path.read_text() for path in sorted(GPU_INFORMATION.glob("*/information"))]
    return [found[1] for text in texts if (found := re.search(r"Model:\s*(.+)", text))]
