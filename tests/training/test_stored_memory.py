"""Memory in a checkpoint: that of all ranks, read by any number of them, also from the files that 0.3.0 wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.model.tiny_model import tiny_model
from tests.training.small_run import stored_memory, tiny_config, trained
from txl_lightning.data.streams import part_of_streams
from txl_lightning.distributed.ranks import Ranks
from txl_lightning.errors import OptionError
from txl_lightning.model.memory import Memory
from txl_lightning.runs.storage import read_file, write_checkpoint
from txl_lightning.training.module import MemoryHolder
from txl_lightning.training.run import train

RESUMED = ("trainer.max_steps=13", "evaluation.max_segments=1")


def in_files(state: dict[str, Any], folder: Path, n_ranks: int) -> dict[str, Any]:
    """Write a memory as 0.3.0 did on several ranks, a file each."""
    (folder / "memory").mkdir()
    whole = Memory.from_state_dict(state["memory"])
    files = [f"memory/step7-{rank}-of-{n_ranks}.pt" for rank in range(n_ranks)]
    for rank, file in enumerate(files):
        write_checkpoint(whole.streams(*part_of_streams(whole.batch_size, rank, n_ranks)).state_dict(), folder / file)
    return {"memory": None, "next_number": state["next_number"], "files": files}


@pytest.mark.parametrize("n_files", [0, 1, 2, 4, 5])
def test_any_number_of_ranks_reads_the_memory_of_all(
    tmp_path: Path, n_files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ranks, "largest", lambda _, number: int(number))
    model = tiny_model(mem_len=3).float()
    whole = Memory(torch.randn(2, 5, 3, 8), filled=3)
    state: dict[str, Any] = {"memory": whole.state_dict(), "next_number": 7}
    state = in_files(state, tmp_path, n_files) if n_files else state
    for n_ranks in (1, 2, 3, 4, 5):
        holders = [MemoryHolder() for _ in range(n_ranks)]
        for rank, holder in enumerate(holders):
            holder.load_state_dict(state, tmp_path, 5, Ranks(rank, n_ranks), model)
        sizes = [holder.memory.batch_size for holder in holders]
        assert sizes == sorted(sizes, reverse=True)
        assert sum(sizes) == 5
        parts = [holder.memory.state_dict() for holder in holders]
        monkeypatch.setattr(Ranks, "collect", lambda _, own, parts=parts: parts)
        stored = holders[0].state_dict(Ranks(0, n_ranks))
        assert torch.equal(stored["memory"]["states"], whole.states)
        assert stored["next_number"] == 7


def test_a_file_of_030_that_is_damaged_or_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    original = trained() / "run/checkpoints/last.ckpt"
    contents = read_file(original)
    contents["training_memory"] = in_files(contents["training_memory"], tmp_path, 2)
    write_checkpoint(contents, tmp_path / "last.ckpt")
    config = tiny_config(trained(), *RESUMED, f"resume={tmp_path / 'last.ckpt'}")
    train(config, tmp_path / "a")
    train(tiny_config(trained(), *RESUMED, f"resume={original}"), tmp_path / "b")
    last = "checkpoints/last.ckpt"
    assert torch.equal(stored_memory(tmp_path / "a" / last).states, stored_memory(tmp_path / "b" / last).states)
    capsys.readouterr()
    file = tmp_path / contents["training_memory"]["files"][1]
    file.write_bytes(file.read_bytes()[:-100] + bytes(100))
    with pytest.raises(OptionError, match=f"resume={file}: is "):
        train(config, tmp_path / "c")
    file.unlink()
    train(config, tmp_path / "c")
    (said,) = (line for line in capsys.readouterr().err.splitlines() if "memory" in line)
    where = f"its files are not in {tmp_path / 'memory'}"
    assert f"last.ckpt holds no training memory ({where}): it fills again over the next 8 tokens" in said
