"""Machines of a run: accelerator, precision, a clock that jumps, a disk that fills."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest
import torch

from tests.in_process import run_txl
from tests.training.small_run import TINY, tiny_config
from txl_lightning import files
from txl_lightning.errors import OptionError
from txl_lightning.runs.storage import read_file
from txl_lightning.runs.threads_and_precision import cpu_bfloat16_speedup, cpu_has_bfloat16
from txl_lightning.training import module
from txl_lightning.training.checks import check_config, resolve_accelerator, resolve_precision
from txl_lightning.training.loggers import CurveFile
from txl_lightning.training.run import train


@pytest.mark.parametrize(
    ("cuda", "mps", "overrides", "chosen"),
    [
        (True, True, ("optimizer=muon",), ("gpu", "bf16-mixed", "bf16-true")),
        (False, True, ("optimizer=muon",), ("mps", "32-true", "32-true")),
        (False, True, ("trainer.devices=2",), ("cpu", "32-true", "bf16-true")),
        (False, False, ("optimizer=muon",), ("cpu", "32-true", "32-true")),
    ],
)
def test_auto_takes_the_first_accelerator_that_the_machine_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuda: bool, mps: bool, overrides: tuple[str, ...], chosen: object
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    monkeypatch.setattr("txl_lightning.runs.threads_and_precision.cpu_has_bfloat16", lambda: False)
    options = ("trainer.accelerator=auto", "trainer.precision=auto", "optimizer.ns_precision=auto")
    config = tiny_config(tmp_path, *options, *overrides)
    resolved = resolve_precision(resolve_accelerator(config))
    assert (resolved.trainer.accelerator, resolved.trainer.precision, resolved.optimizer.ns_precision) == chosen
    assert config.trainer.precision == "auto"


@pytest.mark.parametrize(
    ("avx512_bf16", "amx", "speedup", "precision"),
    [
        (True, False, 2.1, "bf16-mixed"),
        (False, True, 1.2, "bf16-mixed"),
        (True, True, 1.1, "32-true"),
        (False, False, None, "32-true"),  # not measured
    ],
)
def test_a_cpu_has_bfloat16_where_its_products_are_faster_in_it(
    avx512_bf16: bool, amx: bool, speedup: float, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(torch.cpu._is_avx512_bf16_supported(), bool)  # private: fails when torch changes them
    assert isinstance(torch.cpu._is_amx_tile_supported(), bool)
    assert isinstance(cpu_has_bfloat16(), bool)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512_bf16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr("txl_lightning.runs.threads_and_precision.cpu_bfloat16_speedup", lambda: speedup)
    assert resolve_precision(tiny_config(tmp_path, "trainer.precision=auto")).trainer.precision == precision


def test_the_speedup_is_of_two_measured_times() -> None:
    assert 0.01 < cpu_bfloat16_speedup() < 100


@pytest.mark.slow
def test_the_choice_is_printed_and_recorded_and_kept_by_a_run_that_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_config(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    options = ("trainer.precision=auto", "trainer.accelerator=auto", "optimizer=muon")
    paths = [f"data.path={tmp_path / 'text.txt'}", f"data.cache_dir={tmp_path / 'cache'}"]
    monkeypatch.setattr("txl_lightning.training.checks.fastest_precision", lambda accelerator: "bf16-mixed")
    ended = run_txl("train", *TINY, *paths, *options, f"hydra.run.dir={tmp_path / 'run'}")
    assert ended.status == 0, ended.err
    assert "device: cpu, precision bf16-mixed, " in ended.err
    last = tmp_path / "run/checkpoints/last.ckpt"
    assert read_file(last)["txl_lightning"]["config"]["trainer"]["accelerator"] == "cpu"
    monkeypatch.setattr("txl_lightning.training.checks.fastest_precision", lambda accelerator: "32-true")
    train(tiny_config(tmp_path, *options, "trainer.max_steps=20", f"resume={last}"), tmp_path / "other")
    assert "device: cpu, precision bf16-mixed, " in capsys.readouterr().err
    written = (tmp_path / "other/config.yaml").read_text()
    assert "\n  precision: bf16-mixed" in written
    assert "\n  ns_precision: bf16-true" in written


@pytest.mark.parametrize(
    ("has_mps", "overrides", "message"),
    [
        (False, ("accelerator=mps",), r"trainer.accelerator=mps: this machine has no Apple GPU"),
        (True, ("accelerator=mps", "devices=2"), r"trainer.accelerator=mps: is one device: trainer.devices=2"),
        (True, ("accelerator=mps", "precision=bf16-mixed"), r"trainer.precision=bf16-mixed: must be 32-true with"),
    ],
)
def test_what_a_machine_cannot_do_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_mps: bool, overrides: tuple[str, ...], message: str
) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: has_mps)
    with pytest.raises(OptionError, match=message):
        check_config(tiny_config(tmp_path, *(f"trainer.{override}" for override in overrides)))


def test_sums_of_losses_stay_in_float64_on_a_device_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let losses of the CPU stand for those of Apple's GPU."""
    monkeypatch.setattr(module, "WITHOUT_FLOAT64", ("cpu",))
    loss = module.TokenLoss()
    loss.update(torch.full((2, 3), 2.0), torch.tensor(6.0))
    assert loss.nll_sum.dtype == loss.n_bytes.dtype == torch.float64
    assert loss.compute() == (2.0, 6, 6.0)


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, limits = CurveFile(tmp_path / "curve.jsonl"), resource.getrlimit(resource.RLIMIT_FSIZE)
    file.append({"steps": 1})
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.path.stat().st_size + 10, limits[1]))  # takes ten more bytes
    try:
        file.append({"steps": 2, "nll": 1.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "could not write curve.jsonl: [Errno 28] No space left" in capsys.readouterr().err
    file.append({"steps": 3})
    rows = [json.loads(line) for line in file.path.read_text().splitlines()]
    assert rows == [{"steps": 1}, {"steps": 2, "nll": 1.0}, {"steps": 3}]


def test_run_directories_never_collide(tmp_path: Path) -> None:
    made = [files.new_directory(str(tmp_path / "outputs/12-00-00")) for _ in range(3)]
    assert made == [str(tmp_path / f"outputs/12-00-00{end}") for end in ("", "-2", "-3")]
    assert all(Path(path).is_dir() for path in made)
