"""`trainer.precision=auto`: resolved by the machine, and part of a run's identity."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.in_process import run_txl
from tests.training.small_run import TINY, tiny_config
from txl_lightning.config.schemas import OptimizerConfig
from txl_lightning.errors import OptionError
from txl_lightning.runs.bfloat16 import cpu_has_bfloat16
from txl_lightning.training.command import run
from txl_lightning.training.precision import resolve_precision
from txl_lightning.training.run import train


@pytest.mark.parametrize(
    ("avx512_bf16", "amx", "precision"),
    [(True, False, "bf16-mixed"), (False, True, "bf16-mixed"), (False, False, "32-true")],
)
def test_the_flags_of_the_cpu_decide(
    avx512_bf16: bool, amx: bool, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512_bf16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    config = tiny_config(tmp_path, "trainer.precision=auto")
    assert resolve_precision(config).trainer.precision == precision
    assert config.trainer.precision == "auto"
    given = tiny_config(tmp_path, "trainer.precision=64-true")
    assert resolve_precision(given) is given


@pytest.mark.parametrize(
    ("precision", "optimizer", "chosen"),
    [
        ("bf16-mixed", "muon", "bf16-true"),
        ("32-true", "muon", "32-true"),
        ("64-true", "muon", "32-true"),
        ("32-true", "adam", "bf16-true"),
    ],
)
def test_muons_iteration_follows_the_precision_of_training(
    precision: str, optimizer: str, chosen: str, tmp_path: Path
) -> None:
    words = (f"trainer.precision={precision}", f"optimizer={optimizer}")
    for named in ((), ("optimizer.ns_precision=auto",)):
        assert resolve_precision(tiny_config(tmp_path, *words, *named)).optimizer.ns_precision == chosen
    assert OptimizerConfig().ns_precision == "bf16-true"


@pytest.mark.parametrize(
    ("cpu", "precision", "advised"),
    [
        ("Intel(R) Xeon(R) Processor with AVX512-BF16", "bf16-mixed", True),
        ("Intel(R) Xeon(R) Processor with AVX512-BF16 and AMX", "bf16-mixed", False),
        ("AMD EPYC 9554 with AVX512-BF16", "bf16-mixed", False),
        ("Intel(R) Xeon(R) Processor with AVX512-BF16", "32-true", False),
    ],
)
def test_an_intel_cpu_without_amx_is_told_what_is_faster(
    cpu: str, precision: str, advised: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txl_lightning.reporting.machine.processor", lambda: cpu)
    monkeypatch.setattr("txl_lightning.runs.bfloat16.cpu_has_bfloat16", lambda: precision == "bf16-mixed")
    options = ("trainer.precision=auto", "trainer.max_steps=1", "evaluation.max_segments=1")
    line, *_ = run(tiny_config(tmp_path, *options), tmp_path / "run")
    assert line.startswith(f"trainer.precision=auto: trained with {precision} on this machine")
    assert ("trainer.precision=32-true is faster on an Intel CPU without AMX" in line) == advised


def test_torch_still_has_the_flags() -> None:
    """`_is_avx512_bf16_supported` and `_is_amx_tile_supported` are private: fails when torch changes them."""
    assert isinstance(torch.cpu._is_avx512_bf16_supported(), bool)
    assert isinstance(torch.cpu._is_amx_tile_supported(), bool)
    assert isinstance(cpu_has_bfloat16(), bool)


def test_a_gpu_is_asked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config(tmp_path, "trainer.precision=auto", "trainer.accelerator=gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for supported, precision in ((True, "bf16-mixed"), (False, "32-true")):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda supported=supported: supported)
        assert resolve_precision(config).trainer.precision == precision


def test_it_is_printed_and_written_and_a_run_of_the_other_precision_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_config(tmp_path)
    paths = [f"data.path={tmp_path / 'text.txt'}", f"data.cache_dir={tmp_path / 'cache'}", "trainer.precision=auto"]
    monkeypatch.setattr("txl_lightning.runs.bfloat16.cpu_has_bfloat16", lambda: True)
    ended = run_txl("train", *TINY, *paths, f"hydra.run.dir={tmp_path / 'run'}")
    assert ended.status == 0, ended.err
    assert "trainer.precision=auto: trained with bf16-mixed on this machine" in ended.out
    assert "precision: bf16-mixed" in (tmp_path / "run/config.yaml").read_text()
    monkeypatch.setattr("txl_lightning.runs.bfloat16.cpu_has_bfloat16", lambda: False)
    resume = f"resume={tmp_path / 'run/checkpoints/last.ckpt'}"
    with pytest.raises(OptionError, match=r"trainer\.precision=32-true: must be bf16-mixed"):
        train(tiny_config(tmp_path, "trainer.precision=auto", "trainer.max_steps=20", resume), tmp_path / "other")
