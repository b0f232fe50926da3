"""Tables in Markdown, and the machine: it names the CPU's instructions for bfloat16."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures import Patch
from txl_lightning import reporting
from txl_lightning.reporting import markdown_table


@pytest.mark.parametrize(
    ("flags", "ending"),
    [
        ("fpu avx512_bf16 amx_tile amx_bf16 sse", " with AVX512-BF16 and AMX"),
        ("fpu avx512_bf16 sse", " with AVX512-BF16"),
        ("fpu avx512_bf16_not sse", ""),
    ],
)
def test_a_machine_says_what_it_multiplies(
    monkeypatch: Patch, tmp_path: Path, flags: str, ending: str
) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(
        f"processor\t: 0\nmodel name\t: A CPU\nflags\t\t: {flags}\n\nprocessor\t: 1\nmodel name\t: A CPU\n"
    )
    monkeypatch.setattr(reporting, "INFORMATION", path)
    assert reporting.processor() == f"A CPU{ending}"


def test_the_gpus_are_those_of_the_driver(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.setattr(reporting, "GPU_INFORMATION", tmp_path)
    assert reporting.gpus() == []
    for n, model in enumerate(("NVIDIA H100 80GB HBM3", "NVIDIA H200")):
        (tmp_path / str(n)).mkdir()
        (tmp_path / str(n) / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 4\n")
    assert reporting.gpus() == ["NVIDIA H100 80GB HBM3", "NVIDIA H200"]


def test_numbers_are_aligned_to_the_right() -> None:
    table = markdown_table(
        ["arm", "bpc"],
        [["on", "1.94 ± 0.01"], ["off", "2.08"], ["none", "–"]],
    )
    assert table.splitlines()[1] == "| --- | ---: |"
    assert table.splitlines()[2] == "| on | 1.94 ± 0.01 |"


NAME = "<script>alert(1)</script> a|b\\|c\n| d\u2028*e* `f` [g](h) &lt;"
CELL = r"&lt;script&gt;alert(1)&lt;/script&gt; a\|b\\\|c \| d \*e\* \`f\` [g\](h) &amp;lt;"


def test_a_name_stays_one_cell_without_markup() -> None:
    lines = [f"| {CELL} | loss |", "| --- | ---: |", f"| {CELL} | 1 |"]
    assert (
        markdown_table(
            [NAME, "loss"],
            [[NAME, "1"]],
        ).splitlines()
        == lines
    )
