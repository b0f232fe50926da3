"""Description of the machine, stated beside every speed."""

from __future__ import annotations

import platform
import re
from pathlib import Path


def processor() -> str:
    """Return the model name of the CPU."""
    information = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.+)", information.read_text()) if information.exists() else None
    return found[1] if found else platform.processor() or platform.machine()
