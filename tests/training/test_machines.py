"""Accelerators that a machine lacks, a clock that jumps, a disk that fills."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import tqdm.std

from tests.training.small_run import tiny_config
from txl_lightning import files
from txl_lightning.errors import OptionError
from txl_lightning.runs import metrics, storage
from txl_lightning.runs.storage import read_file
from txl_lightning.training import curve_files
from txl_lightning.training.precision import resolve_accelerator, resolve_precision
from txl_lightning.training.progress import use_monotonic_clock
from txl_lightning.training.run import train

SHORT = ("evaluation.max_segments=2", "checkpoint.every_n_steps=4")


@pytest.mark.parametrize(
    ("cuda", "mps", "overrides", "chosen"),
    [
        (True, True, (), "gpu"),
        (False, True, (), "mps"),
        (False, True, ("trainer.devices=2",), "cpu"),
        (False, False, (), "cpu"),
    ],
)
def test_auto_takes_the_first_that_the_machine_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuda: bool, mps: bool, overrides: tuple[str, ...], chosen: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    config = tiny_config(tmp_path, "trainer.accelerator=auto", "trainer.precision=auto", *overrides)
    resolved = resolve_accelerator(config).trainer
    assert resolved.accelerator == chosen
    if chosen == "mps":
        assert resolve_precision(resolve_accelerator(config)).trainer.precision == "32-true"


def test_the_choice_of_auto_is_recorded(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU, which auto takes: tests/devices train on it")
    train(tiny_config(tmp_path, *SHORT, "trainer.accelerator=auto"), tmp_path / "run")
    record = read_file(tmp_path / "run/checkpoints/last.ckpt")["txl_lightning"]
    assert record["config"]["trainer"]["accelerator"] == "cpu"


@pytest.mark.parametrize(
    ("mps", "overrides", "message"),
    [
        (False, (), "trainer.accelerator=mps: this machine has no Apple GPU"),
        (True, ("trainer.devices=2",), "trainer.accelerator=mps: is one device: trainer.devices=2"),
        (True, ("trainer.precision=bf16-mixed",), "trainer.precision=bf16-mixed: must be 32-true with trainer.acc"),
    ],
)
def test_mps_is_refused_clearly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mps: bool, overrides: tuple[str, ...], message: str
) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    with pytest.raises(OptionError, match=re.escape(message)):
        train(tiny_config(tmp_path, "trainer.accelerator=mps", *overrides), tmp_path / "run")


def test_an_unknown_accelerator_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"trainer.accelerator=tpu: must be one of auto, cpu, gpu, mps"):
        train(tiny_config(tmp_path, "trainer.accelerator=tpu"), tmp_path / "run")


def test_sums_of_losses_stay_in_float64_on_a_device_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch's meta device stand for Apple's GPU."""
    monkeypatch.setattr(metrics, "WITHOUT_FLOAT64", ("meta",))
    moved: list[torch.dtype] = []
    loss = metrics.TokenLoss()
    loss.update(torch.full((2, 3), 2.0))

    def to_meta(tensor: torch.Tensor) -> torch.Tensor:
        moved.append(tensor.dtype)
        return tensor.to("meta")

    loss._apply(to_meta)
    assert torch.float64 not in moved
    assert (loss.tokens.device.type, loss.nll_sum.device.type, loss.nll_sum.dtype) == ("meta", "cpu", torch.float64)
    assert float(loss.nll_sum) == 12
    loss.reset()
    assert (loss.nll_sum.device.type, loss.nll_sum.dtype, float(loss.nll_sum)) == ("cpu", torch.float64, 0)


def test_a_progress_bar_survives_a_clock_that_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1e9]
    monkeypatch.setattr(tqdm.std, "time", lambda: now[0])
    bar = tqdm.std.tqdm(total=10, mininterval=0.0, miniters=1, file=io.StringIO())
    assert bar._time() == now[0]  # the private attribute that is replaced
    use_monotonic_clock(bar)
    bar.update(5)
    now[0] -= 3600
    time.sleep(0.01)
    bar.update(2)
    shown = bar.format_dict
    assert 0 < shown["elapsed"] < 60
    assert bar.last_print_n == 7
    bar.close()


def full_disk(*args: Any, **options: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_never_destroys_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The disk fills after step 4, while the checkpoint's bytes are written, and curves and progress fail too."""
    save, is_full = torch.save, [False]

    def save_until_full(contents: Any, file: Any) -> None:
        if is_full[0]:
            file.write(bytes(100))
            full_disk()
        save(contents, file)

    def append_line(path: Path, line: str) -> None:
        is_full[0] = True  # the first curve is written after step 5
        full_disk()

    monkeypatch.setattr(storage.torch, "save", save_until_full)
    monkeypatch.setattr(curve_files, "append_line", append_line)
    config = tiny_config(tmp_path, *SHORT, "trainer.progress_file=true")
    result = train(config, tmp_path / "run")
    assert result["steps"] == 12
    assert json.loads((tmp_path / "run/metrics.json").read_text()) == result
    folder = tmp_path / "run/checkpoints"
    assert {path.name: read_file(path)["global_step"] for path in folder.iterdir()} == {"last.ckpt": 4}
    said = capsys.readouterr().err
    assert (
        "could not write the checkpoint of step 5: [Errno 28] No space left on device; the last one is of step 4"
        in said
    )
    assert "could not write validation.jsonl: [Errno 28] No space left on device; training continues" in said


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        """File that takes ten more bytes."""

        def __init__(self, file: Any) -> None:
            self.file = file
            self.seek, self.truncate = file.seek, file.truncate

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *error: object) -> None:
            self.file.close()

        def write(self, data: bytes) -> int:
            return self.file.write(data[:10])

    path = tmp_path / "curve.jsonl"
    curve_files.append_line(path, '{"steps": 1}')
    with monkeypatch.context() as patch:
        original = Path.open
        patch.setattr(Path, "open", lambda self, *args, **options: Full(original(self, *args, **options)))
        with pytest.raises(OSError, match="No space left"):
            curve_files.append_line(path, '{"steps": 2, "nll": 1.0}')
    curve_files.append_line(path, '{"steps": 3}')
    assert path.read_text() == '{"steps": 1}\n{"steps": 3}\n'


def test_a_curve_that_cannot_be_rewritten_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = curve_files.CurveFile(tmp_path / "curve.jsonl")
    for steps in (1, 2):
        file.append({"steps": steps})
    monkeypatch.setattr(files.os, "fsync", full_disk)
    file.keep_until(1)
    assert file.path.read_text() == '{"steps": 1}\n{"steps": 2}\n'
    assert "could not write curve.jsonl: [Errno 28]" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [file.path]


def test_run_directories_never_collide(tmp_path: Path) -> None:
    made = [files.new_directory(str(tmp_path / "outputs/12-00-00")) for _ in range(3)]
    assert made == [str(tmp_path / f"outputs/12-00-00{end}") for end in ("", "-2", "-3")]
    assert all(Path(path).is_dir() for path in made)
