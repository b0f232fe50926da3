"""Description of the machine, stated beside every speed."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

import torch


def processor() -> str:
    """Return the model of the CPU, and its instructions for products in bfloat16: virtual machines hide some."""
    information = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.+)", information.read_text()) if information.exists() else None
    model = found[1] if found else platform.processor() or platform.machine()
    units = {"AVX512-BF16": torch.cpu._is_avx512_bf16_supported(), "AMX": torch.cpu._is_amx_tile_supported()}
    names = " and ".join(name for name, is_there in units.items() if is_there)
    return f"{model} with {names}" if names else model


def cores() -> int:
    """Return the number of CPU cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
