"""The description of the machine names the CPU's instructions for bfloat16."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures import Patch
from txl_lightning.reporting import machine


@pytest.mark.parametrize(
    ("flags", "ending"),
    [
        ("fpu avx512_bf16 amx_tile amx_bf16 sse", " with AVX512-BF16 and AMX"),
        ("fpu avx512_bf16 sse", " with AVX512-BF16"),
        ("fpu avx512_bf16_not sse", ""),
    ],
)
def test_a_machine_says_what_it_multiplies(monkeypatch: Patch, tmp_path: Path, flags: str, ending: str) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(f"processor\t: 0\nmodel name\t: A CPU\nflags\t\t: {flags}\n\nprocessor\t: 1\nmodel name\t: A CPU\n")
    monkeypatch.setattr(machine, "INFORMATION", path)
    assert machine.processor() == f"A CPU{ending}"


def test_the_gpus_are_those_of_the_driver(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "GPU_INFORMATION", tmp_path)
    assert machine.gpus() == []
    for n, model in enumerate(("NVIDIA H100 80GB HBM3", "NVIDIA H200")):
        (tmp_path / str(n)).mkdir()
        (tmp_path / str(n) / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 4\n")
    assert machine.gpus() == ["NVIDIA H100 80GB HBM3", "NVIDIA H200"]
