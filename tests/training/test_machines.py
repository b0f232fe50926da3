"""Machines of a run: accelerator, precision, a clock that jumps, a disk that fills."""

from __future__ import annotations

import pytest
import torch

from tests.training.small_run import bare_module, tiny_config
from txl_lightning import TransformerXL, TransformerXLConfig
from txl_lightning.evaluation import hardware
from txl_lightning.evaluation.hardware import resolve_accelerator, resolve_precision


def test_auto_takes_the_first_accelerator_that_the_machine_has(tmp_path, monkeypatch):
    options = ("trainer.accelerator=auto", "trainer.precision=auto", "optimizer.ns_precision=auto")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    monkeypatch.setattr(hardware, "cpu_has_bfloat16", lambda: False)
    for cuda, mps, word, *chosen in (
        (True, True, "optimizer=muon", "gpu", "bf16-mixed", "bf16-true"),
        (False, True, "optimizer=muon", "mps", "32-true", "32-true"),
        (False, True, "trainer.devices=2", "cpu", "32-true", "bf16-true"),
        (False, False, "optimizer=muon", "cpu", "32-true", "32-true"),
    ):
        monkeypatch.setattr(
            torch.cuda,
            "is_available",
            lambda has=cuda: has,
        )
        monkeypatch.setattr(
            torch.backends.mps,
            "is_available",
            lambda has=mps: has,
        )
        found = resolve_precision(resolve_accelerator(tiny_config(tmp_path, *options, word)))
        assert [
            found.trainer.accelerator,
            found.trainer.precision,
            found.optimizer.ns_precision,
        ] == chosen


@pytest.mark.parametrize(
    ("avx512_bf16", "amx", "speedup", "precision"),
    [
        (True, False, 2.1, "bf16-mixed"),
        (False, True, 1.2, "bf16-mixed"),
        (True, True, 1.1, "32-true"),
        (False, False, None, "32-true"),  # not measured
    ],
)
def test_a_cpu_trains_in_bfloat16_where_products_are_faster_in_it(
    monkeypatch, avx512_bf16, amx, speedup, precision
):
    # Private functions of torch: fails when torch changes them.
    assert isinstance(torch.cpu._is_avx512_bf16_supported(), bool)
    assert isinstance(torch.cpu._is_amx_tile_supported(), bool)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512_bf16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(hardware, "cpu_bfloat16_speedup", lambda: speedup)
    assert hardware.fastest_precision("cpu") == precision


def test_the_speedup_is_the_ratio_of_two_measured_times():
    assert 0.01 < hardware.cpu_bfloat16_speedup() < 100


def test_sums_of_losses_are_in_float64():
    """Float32 would lose the ones."""
    sums = bare_module(TransformerXL(TransformerXLConfig(vocab_size=256)))
    tokens = torch.zeros(1, 3, dtype=torch.int64)
    sums.add_losses(
        torch.tensor([[2.0**30]]),
        tokens[:, :1],
    )
    sums.add_losses(torch.ones(1, 3), tokens)
    assert sums.evaluation_sums.tolist() == [2.0**30 + 3, 4, 4]
