"""The description of the machine names the CPU's instructions for bfloat16."""

from __future__ import annotations

import pytest
import torch

from txl_lightning.reporting.machine import processor


@pytest.mark.parametrize(
    ("avx512", "amx", "ending"),
    [
        (True, True, " with AVX512-BF16 and AMX"),
        (True, False, " with AVX512-BF16"),
        (False, True, " with AMX"),
    ],
)
def test_two_machines_of_one_model_differ_in_what_they_multiply(
    monkeypatch: pytest.MonkeyPatch, avx512: bool, amx: bool, ending: str
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    model = processor()
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    assert " with A" not in model
    assert processor() == model + ending
