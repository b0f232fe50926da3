"""The Triton kernel as machine code of an H100 and an A100: the compiler needs no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton has an environment of its own: make test-triton")
SHARED = {90: 232_448, 80: 166_912}  # bytes that a block of threads can have
SPILLED = 2048  # bytes of a thread, beside the 1,020 of its registers


@pytest.mark.timeout(900)
def test_every_kernel_is_compiled_within_shared_memory_and_registers(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.kernels.compiled_relative"]
    environment |= {"TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert len(rows) == 24
    too_much = [row for row in rows if row[-2] > SHARED[row[1]] or row[-1] > SPILLED]
    assert too_much == []
