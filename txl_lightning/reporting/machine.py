"""Description of the machine, stated beside every speed."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path


def processor() -> str:
    """Return the model of the CPU."""
    information = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.+)", information.read_text()) if information.exists() else None
    return found[1] if found else platform.processor() or platform.machine()


def cores() -> int:
    """Return the number of CPU cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
