"""Memory of several ranks: a file each, which fits the checkpoint beside it whenever a run is killed."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.fixtures import Output, Patch
from tests.model.tiny_model import tiny_model
from tests.training import test_saving
from tests.training.small_run import stored_memory, tiny_config
from txl_lightning.config.schemas import from_plain, plain
from txl_lightning.distributed.processes import run_on_all
from txl_lightning.distributed.ranks import Ranks
from txl_lightning.errors import OptionError
from txl_lightning.model.memory import Memory
from txl_lightning.runs.storage import read_file, remove_unused_memory, write_checkpoint
from txl_lightning.training.checkpointing import Checkpoints, last_good
from txl_lightning.training.module import MemoryHolder
from txl_lightning.training.run import train

OPTIONS = (*test_saving.OPTIONS, "data.batch_size=5", "model.dropout=0")
CHECKPOINTS = ("last.ckpt", "previous.ckpt", "best.ckpt")


def train_with_snapshots(config: dict[str, Any], directory: str) -> None:
    """Train; before and after every step of a save on the disk, rank 0 copies the folder, as a kill would leave it."""
    run = Path(directory)

    def snapshot() -> None:
        number = len(list(run.parent.glob("snapshot*")))
        part = shutil.ignore_patterns(".part-*")  # another rank may rename it meanwhile
        if (run / "checkpoints/last.ckpt").exists():
            shutil.copytree(run / "checkpoints", run.parent / f"snapshot{number}", ignore=part)

    def watched(original: Any) -> Any:
        def call(self: Path, *args: Any, **options: Any) -> Any:
            if "checkpoints" in self.parts and dist.is_initialized() and dist.get_rank() == 0:
                snapshot()
            return original(self, *args, **options)

        return call

    for name in ("replace", "unlink"):
        setattr(Path, name, watched(getattr(Path, name)))
    train(from_plain(config), run)


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("two")
    config = tiny_config(base, *OPTIONS, "trainer.devices=2")
    run_on_all(train_with_snapshots, plain(config), str(base / "run"), processes=2)
    return base


def files_of(checkpoint: Path) -> set[str]:
    return set(read_file(checkpoint)["training_memory"].get("files", []))


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_a_checkpoint_and_its_memory(of_two: Path) -> None:
    snapshots = list(of_two.glob("snapshot*"))
    assert len(snapshots) > 20
    for folder in snapshots:
        path, damaged = last_good(folder)
        assert (path is None, damaged) == (False, [])
        for checkpoint in folder.glob("*.ckpt"):
            step, files = read_file(checkpoint)["global_step"], files_of(checkpoint)
            assert len(files) == 2
            assert all(Path(file).name.startswith(f"step{step}-") for file in files)
            assert stored_memory(checkpoint).batch_size == 5


def test_memory_stays_as_long_as_a_checkpoint_needs_it(of_two: Path) -> None:
    folder = of_two / "run/checkpoints"
    needed = {name: files_of(folder / name) for name in CHECKPOINTS}
    assert {f"memory/{path.name}" for path in (folder / "memory").iterdir()} == set().union(*needed.values())
    assert needed["last.ckpt"].isdisjoint(needed["previous.ckpt"])
    sizes = [read_file(folder / name)["states"].shape[1] for name in sorted(needed["last.ckpt"])]
    assert sizes == [3, 2]


def resumed(of_two: Path, directory: Path, resume: Path | str, steps: int = 14) -> dict[str, Any]:
    config = tiny_config(of_two, *OPTIONS, f"resume={resume}", f"trainer.max_steps={steps}")
    train(config, directory)
    return read_file(directory / "checkpoints/last.ckpt")


def test_a_copy_takes_its_memory_or_says_so(of_two: Path, tmp_path: Path, capsys: Output) -> None:
    folder = of_two / "run/checkpoints"
    at_home = resumed(of_two, tmp_path / "at home", folder / "last.ckpt")
    assert at_home["training_memory"].keys() == {"memory", "next_number"}  # one process: in the checkpoint
    shutil.copytree(folder, tmp_path / "copied")
    found = resumed(of_two, tmp_path / "b", tmp_path / "copied/last.ckpt")
    assert torch.equal(found["training_memory"]["memory"]["states"], at_home["training_memory"]["memory"]["states"])
    assert "holds no training memory" not in capsys.readouterr().err
    last = tmp_path / "copied/last.ckpt"
    shutil.copy(last, tmp_path / "copied/my_copy.ckpt")
    remove_unused_memory(tmp_path / "copied")
    for name in CHECKPOINTS:
        (tmp_path / "copied" / name).rename(tmp_path / name)
    remove_unused_memory(tmp_path / "copied")
    assert stored_memory(tmp_path / "copied/my_copy.ckpt").batch_size == 5
    (tmp_path / "last.ckpt").rename(last)
    shutil.rmtree(tmp_path / "copied/memory")
    resumed(of_two, tmp_path / "c", tmp_path / "copied/last.ckpt")
    (said,) = (line for line in capsys.readouterr().err.splitlines() if "memory" in line)
    where = f"its files are not in {tmp_path / 'copied/memory'}"
    assert f"last.ckpt holds no training memory ({where}): it fills again over the next 8 tokens" in said


def test_a_damaged_file_is_named_and_skipped(of_two: Path, tmp_path: Path, capsys: Output) -> None:
    folder = tmp_path / "run/checkpoints"
    shutil.copytree(of_two / "run/checkpoints", folder)
    damaged = folder / min(files_of(folder / "last.ckpt"))
    damaged.write_bytes(damaged.read_bytes()[:-100] + bytes(100))
    with pytest.raises(OptionError, match=f"resume={damaged}: is "):
        resumed(of_two, tmp_path / "b", folder / "last.ckpt")
    (folder / "best.ckpt").unlink()
    resumed(of_two, tmp_path / "run", "auto", steps=13)
    said = capsys.readouterr().err
    assert f"{damaged}: is " in said
    assert f"resume=auto: resuming from {folder / 'previous.ckpt'}" in said


def test_the_best_brings_its_memory_into_another_directory(of_two: Path, tmp_path: Path) -> None:
    config = tiny_config(of_two, *OPTIONS, f"resume={of_two / 'run/checkpoints/last.ckpt'}", "trainer.max_steps=13")
    best = read_file(of_two / "run/checkpoints/best.ckpt")["global_step"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "on_validation_end", lambda *_: None)  # no better one
        train(config, tmp_path / "run")
    folder = tmp_path / "run/checkpoints"
    assert read_file(folder / "best.ckpt")["global_step"] == best
    assert {f"memory/{path.name}" for path in (folder / "memory").iterdir()} == files_of(folder / "best.ckpt")
    assert stored_memory(folder / "best.ckpt").batch_size == 5


@pytest.mark.parametrize("before", [1, 2, 3, 4, 5])
def test_any_number_of_ranks_reads_the_memory(tmp_path: Path, before: int, monkeypatch: Patch) -> None:
    monkeypatch.setattr(Ranks, "largest", lambda _, number: int(number))
    monkeypatch.setattr(Ranks, "first", lambda *_: "step7-abc")
    monkeypatch.setattr(Ranks, "gather", lambda _, value: [value])
    model = tiny_model(mem_len=3).float()
    whole = Memory(torch.randn(2, 5, 3, 8), filled=3)
    for rank in range(before):
        holder, place = MemoryHolder(), Ranks(rank, before)
        holder.load_state_dict({"memory": whole.state_dict(), "next_number": 7}, tmp_path, 5, place, model)
        holder.folder = tmp_path
        state = holder.state_dict(place, 7)
    assert (len(state.get("files", [])), state["memory"] is None) == ((before, True) if before > 1 else (0, False))
    for after in (1, 2, 3, 4, 5):
        read = [MemoryHolder() for _ in range(after)]
        for rank, holder in enumerate(read):
            holder.load_state_dict(state, tmp_path, 5, Ranks(rank, after), model)
        parts = [holder.memory for holder in read]
        assert torch.equal(Memory.join(parts).states, whole.states)
        assert [part.batch_size for part in parts] == sorted((part.batch_size for part in parts), reverse=True)


def test_a_full_disk_on_one_rank_frees_the_space(tmp_path: Path, monkeypatch: Patch, capsys: Output) -> None:
    ranks = Ranks(0, 2)
    monkeypatch.setattr(Ranks, "first", lambda _, value: value)
    monkeypatch.setattr(Ranks, "gather", lambda _, value: [value, "[Errno 28] No space left on device"])
    checkpoints = Checkpoints(tmp_path, tiny_config(tmp_path, *OPTIONS), ranks, {}, None)
    write_checkpoint({"training_memory": {"files": ["memory/old"]}}, tmp_path / "last.ckpt")
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory/old").touch()
    holder = MemoryHolder()
    holder.memory = Memory(torch.zeros(2, 3, 3, 4), filled=3)
    holder.folder = tmp_path
    trainer: Any = SimpleNamespace(global_step=8, training=True)
    trainer.save_checkpoint = lambda *_, **__: holder.state_dict(ranks, 8)
    assert checkpoints.save(trainer) is False
    assert "could not write the checkpoint of step 8: [Errno 28] No space left on device" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "memory").iterdir()] == ["old"]
