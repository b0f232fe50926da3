"""Another text than the run's is read whole, in every command, unless its parts are asked for."""

from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.small_runs import SmallRuns
from tests.evaluation.test_attention import written
from tests.evaluation.test_generate import generated, options
from tests.recl.small_recl import recl

LINES = "".join(f"line {i}: a square of {i}\n" for i in range(60))


def split_of(command: str, runs: SmallRuns, directory: Path, chosen: dict[str, Any]) -> str:
    """Return the split that a command says it read."""
    if command == "attention":
        return written(runs, "relative", directory, **chosen)["split"]
    if command == "recl":
        return recl(directory, runs.checkpoint("relative"), **chosen)["split"]
    prompt = options(runs, "relative", context=5, **chosen)
    return generated(prompt, directory)["prompt"]["split"]


@pytest.mark.parametrize(
    ("command", "own"),
    [
        ("attention", "valid"),
        ("recl", "test"),
        ("generate", "test"),
    ],
)
def test_another_text_is_whole_a_moved_one_has_splits(
    runs: SmallRuns, tmp_path: Path, command: str, own: str
) -> None:
    runs.checkpoint("relative")
    (tmp_path / "moved.txt").write_bytes((runs.folder / "text.txt").read_bytes())
    (tmp_path / "other.txt").write_text(LINES)
    other = {"data_path": str(tmp_path / "other.txt")}
    assert split_of(command, runs, tmp_path, other) == "whole"
    other["split"] = "test"
    assert split_of(command, runs, tmp_path, other) == "test"
    moved = {"data_path": str(tmp_path / "moved.txt")}
    assert split_of(command, runs, tmp_path, moved) == own
