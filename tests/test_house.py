"""The house: who may import whom."""

import ast
from pathlib import Path

import pytest

import txl_lightning

PACKAGE = Path(txl_lightning.__file__).parent
ABOVE = ("txl_lightning.runs", "txl_lightning.evaluation", "txl_lightning.training", "txl_lightning.cli")
FORBIDDEN = {
    "model": ("lightning", "hydra", "omegaconf", "wandb", "txl_lightning.data", *ABOVE),
    "data": ("hydra", "wandb", "txl_lightning.model", *ABOVE),
    "reporting": ("lightning", "hydra", "txl_lightning.data", "txl_lightning.model", *ABOVE),
    "runs": ("hydra", "wandb", "txl_lightning.reporting", *ABOVE[1:]),
    "evaluation": ("hydra", *ABOVE[2:]),
    "training": ("hydra", *ABOVE[3:]),
}


def imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


@pytest.mark.parametrize("room", sorted(FORBIDDEN))
def test_a_room_imports_only_what_stands_below_it(room: str) -> None:
    files = sorted((PACKAGE / room).glob("*.py"))
    assert files
    for path in files:
        wrong = {
            n
            for n in imports(path)
            for f in (*FORBIDDEN[room], "experiments", "sweeps")
            if n == f or n.startswith(f + ".")
        }
        assert not wrong, f"{path.name} imports {wrong}"
