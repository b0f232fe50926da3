"""Benchmark of the attention kernels, at tiny size."""

import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import kernels


def test_kernels_are_timed_and_compared_and_a_failure_is_named() -> None:
    results = kernels.measure_kernels(kernels.TINY_CASES[0], "float32", ["eager", "flex"], "cpu", rounds=2)
    assert results["eager"]["error"] == 0
    assert results["eager"]["speedup"] == 1
    assert results["eager"]["milliseconds"] > 0
    assert "no gradients on the CPU" in results["flex"]["failed"]


def test_a_wrong_kernel_is_named() -> None:
    def case(precision: str, **errors: float) -> dict:
        found = {name: {"error": error} for name, error in errors.items()}
        return {"case": {"name": "base"}, "precision": precision, "kernels": {**found, "none": {"failed": "no GPU"}}}

    right = case("float32", eager=0.0, flex=5e-4)
    assert kernels.wrong([right, case("bfloat16", flex=0.04)]) == []
    found = kernels.wrong([right, case("bfloat16", flex=0.06, eager=float("nan")), case("float32", flex=2e-3)])
    assert found == ["flex (base, bfloat16: 0.06)", "eager (base, bfloat16: nan)", "flex (base, float32: 0.002)"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="takes minutes on a GPU")
def test_the_command_prints_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(sys, "argv", ["kernels", "--rounds", "1", "--output", str(tmp_path / "out.json")])
    kernels.main()
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "out.json").read_text())
    (result,) = printed["results"]
    assert (printed["device"], list(result["kernels"])) == ("CPU", ["eager"])
