"""Text that reports share: Markdown tables, the machine's name beside every speed, how to upload a run of W&B."""

from __future__ import annotations

import platform
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

# Brackets are markup only before these characters, underscores only at the ends of a word. Elsewhere they stay
# unescaped, so intervals and names are readable in the source.
MARKUP = re.compile(r"[\\`*|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|\](?=[(\[:])|\[(?=[\^!])")
LINE_STARTS = re.compile(
    r"^([-+#=]+|\d+(?=[.)]))(?=[.)]?(\s|$))"
)  # marks for lists, headings and rules
ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})

INFORMATION = Path("/proc/cpuinfo")
GPU_INFORMATION = Path("/proc/driver/nvidia/gpus")
BFLOAT16 = {
    "avx512_bf16": "AVX512-BF16",
    "amx_bf16": "AMX",
}  # instructions for bfloat16 products, by Linux flag


def escape(value: object) -> str:
    """Return text as one Markdown line that cannot become markup."""
    escaped = MARKUP.sub(r"\\\g<0>", str(value).translate(ENTITIES))
    line = " ".join(escaped.split())
    start = LINE_STARTS.match(line)
    if start is None:
        return line
    if line[0].isdigit():
        return f"{start[0]}\\{line[start.end() :]}"
    return f"\\{line}"


def markdown_table(
    header: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[bool] | None = None
) -> str:
    """Return a pipe table.

    Args:
        header: column titles.
        rows: cells of each row; they are escaped, as titles are.
        right: columns to align to the right; None: the columns with only numbers or dashes.
    """
    if right is None:
        columns = range(len(header))
        right = [all(_is_number(str(row[column])) for row in rows) for column in columns]
    lines = [[escape(cell) for cell in row] for row in (header, *rows)]
    lines.insert(1, ["---:" if to_the_right else "---" for to_the_right in right])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def upload_lines(directory: Path) -> list[str]:
    """Return a line with the command that uploads offline runs, if there are any."""
    folders = []
    for file in sorted(directory.glob("wandb/offline-run-*/run-*.wandb")):
        folders.append(shlex.quote(str(file.parent)))
    if not folders:
        return []
    return [f"offline run of Weights & Biases, to upload it: wandb sync {' '.join(folders)}"]


def _is_number(cell: str) -> bool:
    """Return whether a cell is a number (also with a margin, `1.94 ± 0.01`), a dash or empty."""
    return cell in ("", "–") or re.sub("[±., ]", "", cell).lstrip("-−+").isdigit()


def processor() -> str:
    """Return the CPU model, and on Linux its bfloat16 instructions: virtual machines hide some."""
    text = ""
    if INFORMATION.exists():
        text = INFORMATION.read_text()
    model = re.search(r"model name\s*: (.+)", text)
    flags = re.search(r"flags\s*: (.+)", text)
    name = platform.processor() or platform.machine()
    if model is not None:
        name = model[1]
    instructions = []
    for flag, instruction in BFLOAT16.items():
        if flags is not None and flag in flags[1].split():
            instructions.append(instruction)
    if instructions:
        return f"{name} with {' and '.join(instructions)}"
    return name


def gpus() -> list[str]:
    """Return the models of NVIDIA's GPUs as the driver names them, without starting CUDA: a process forks after it."""
    models = []
    for path in sorted(GPU_INFORMATION.glob("*/information")):
        models += re.findall(r"Model:\s*(.+)", path.read_text())
    return models
