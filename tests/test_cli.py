"""The real command: what a user types, and what comes back for what cannot be."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

TXL = [sys.executable, "-m", "txl_lightning.cli"]


def txl(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TXL, *arguments], cwd=directory, capture_output=True, text=True, timeout=120)


def files(directory: Path) -> None:
    (directory / "empty.txt").touch()
    (directory / "short.txt").write_text("too short for sixteen streams\n")
    (directory / "no.ckpt").write_text("no checkpoint\n")
    torch.save({"state_dict": {}}, directory / "other.ckpt")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "modle.n_layer=3"], "modle.n_layer=3: no such option, did you mean model.n_layer?"),
        (["train", "mem_len=-1"], "mem_len=-1: no such option, did you mean memory.mem_len or evaluation.mem_len?"),
        (["train", "memory.mem_len=-1"], "memory.mem_len=-1: must be an integer >= 0"),
        (["train", "model.d_model=33"], "model.d_model=33: must be an even integer"),
        (["train", "+model.n_layers=3"], "+model.n_layers=3: options cannot be added, did you mean model.n_layer"),
        (["train", "optimizer.betas=[0.9]"], "optimizer.betas=[0.9]: must be two numbers in [0, 1)"),
        (["train", "evaluation.clamp_len=-5"], "evaluation.clamp_len=-5: must be"),
        (["train", "hydra.run.dir=/proc/nowhere"], "/proc/nowhere"),
        (["evaluate", "checkpoint=empty.txt"], "checkpoint=empty.txt: is not a checkpoint"),
        (["train", "model=large"], "model=large: must be one of"),
        (["train", "trainer.max_steps=many"], "trainer.max_steps=many"),
        (["train", "trainer.devices=48"], "trainer.devices=48"),
        (["train", "data=file"], "data.path=None: must be a file"),
        (["train", "data=file", "data.path=empty.txt"], "data.path=empty.txt: is an empty file"),
        (["train", "data=file", "data.path=missing.txt"], "data.path=missing.txt: cannot be read"),
        (["train", "data=file", "data.path=short.txt"], "shorter than one segment per stream"),
        (["train", "resume=no.ckpt"], "resume=no.ckpt: is not a checkpoint"),
        (["train", "resume=other.ckpt"], "resume=other.ckpt: is not a checkpoint of txl train"),
        (["evaluate", "checkpoint=no.ckpt"], "checkpoint=no.ckpt: is not a checkpoint"),
        (["evaluate"], "checkpoint: must be given"),
        (["fly"], "unknown command 'fly': must be one of train, evaluate"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_ends_soon_with_one_clear_line(tmp_path: Path, arguments: list[str], words: str) -> None:
    files(tmp_path)
    started = time.perf_counter()
    done = txl(tmp_path, *arguments)
    assert time.perf_counter() - started < 15
    assert done.returncode in (1, 2)
    assert words in done.stderr
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1


def test_the_traceback_is_there_for_who_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    done = txl(tmp_path, "train", "memory.mem_len=-1")
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_help_lists_commands_and_groups(tmp_path: Path) -> None:
    assert "txl train [overrides]" in txl(tmp_path, "--help").stdout
    groups = txl(tmp_path, "train", "--help").stdout
    assert "memory: off, on" in groups
    assert "n_layer" in groups


@pytest.mark.slow
def test_train_then_evaluate_at_the_same_and_at_other_lengths(tmp_path: Path) -> None:
    text = "".join(f"{i} plus one is {i + 1}\n" for i in range(2000))
    (tmp_path / "text.txt").write_text(text)
    data = ["data=file", "data.path=text.txt", "data.cache_dir=cache"]
    short = ["profile=smoke", "trainer.max_steps=20", "trainer.num_threads=1", "logger=none"]
    done = txl(tmp_path, "train", *short, *data, "hydra.run.dir=run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(tmp_path / "run")
    metrics = json.loads((tmp_path / "run/metrics.json").read_text())

    checkpoint = "checkpoint=run/checkpoints/best.ckpt"
    done = txl(tmp_path, "evaluate", checkpoint, "num_threads=1", "hydra.run.dir=same")
    assert done.returncode == 0, done.stderr
    same = json.loads((tmp_path / "same/evaluation.json").read_text())
    assert same["test"]["nll"] == pytest.approx(metrics["test/nll"], rel=1e-6)

    lengths = ["mem_len=100", "same_length=true", "segment_len=10", "batch_size=3"]
    done = txl(tmp_path, "evaluate", checkpoint, *lengths, "splits=[test]", "hydra.run.dir=other")
    assert done.returncode == 0, done.stderr
    other = json.loads((tmp_path / "other/evaluation.json").read_text())
    assert other["evaluation"] | {"mem_len": 100, "same_length": True, "segment_len": 10} == other["evaluation"]
    assert other["test"]["nll"] != same["test"]["nll"]
    assert "valid" not in other
    assert done.stdout.splitlines()[-1] == str(tmp_path / "other")


@pytest.mark.slow
def test_a_multirun_trains_both_arms_in_one_sweep_folder(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("".join(f"{i} plus one is {i + 1}\n" for i in range(2000)))
    data = ["data=file", "data.path=text.txt", "data.cache_dir=cache"]
    short = ["profile=smoke", "trainer.max_steps=4", "trainer.num_threads=1", "logger=none"]
    done = txl(tmp_path, "train", "-m", "memory=on,off", *short, *data, "hydra.sweep.dir=sweep")
    assert done.returncode == 0, done.stderr
    runs = [json.loads((tmp_path / f"sweep/{i}/metrics.json").read_text()) for i in (0, 1)]
    assert [run["evaluation"]["mem_len"] for run in runs] == [32, 0]
