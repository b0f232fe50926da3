"""Text that every report shares: tables in Markdown, and the name of the machine, stated beside every speed."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from pathlib import Path

# Brackets are markup only before these characters, underscores only at the ends of a word. Elsewhere they are not
# escaped, to keep intervals and names readable in the source.
MARKUP = re.compile(r"[\\`*|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|\](?=[(\[:])|\[(?=[\^!])")
LINE_STARTS = re.compile(r"^([-+#=]+|\d+(?=[.)]))(?=[.)]?(\s|$))")  # marks of lists, headings and rules
ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}

INFORMATION = Path("/proc/cpuinfo")
GPU_INFORMATION = Path("/proc/driver/nvidia/gpus")
BFLOAT16 = {"avx512_bf16": "AVX512-BF16", "amx_bf16": "AMX"}  # instructions for products in bfloat16, by flag of Linux


def escape(value: object) -> str:
    """Return text as one line of Markdown that cannot become markup."""
    escaped = "".join(ENTITIES.get(sign, sign) for sign in str(value))
    line = " ".join(MARKUP.sub(r"\\\g<0>", escaped).split())
    return LINE_STARTS.sub(lambda found: f"{found[0]}\\" if found[0].isdigit() else f"\\{found[0]}", line)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[bool] | None = None) -> str:
    """Return a pipe table.

    Args:
        header: title of each column.
        rows: cells of each row; they are escaped, as titles are.
        right: columns to align to the right; None for those whose cells are all numbers or dashes.
    """
    if right is None:
        right = [all(_is_number(str(row[i])) for row in rows) for i in range(len(header))]
    lines = [[escape(cell) for cell in row] for row in (header, *rows)]
    lines.insert(1, ["---:" if right_ else "---" for right_ in right])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _is_number(cell: str) -> bool:
    """Return whether a cell is a number (also with a margin, `1.94 ± 0.01`), a dash or empty."""
    return cell in ("", "–") or re.sub("[±., ]", "", cell).lstrip("-−+").isdigit()


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
