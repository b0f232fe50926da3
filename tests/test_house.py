"""The house: who may import whom."""

import ast
from pathlib import Path

import pytest

import txl_lightning

PACKAGE = Path(txl_lightning.__file__).parent
FORBIDDEN = {
    "model": ("lightning", "hydra", "omegaconf", "wandb", "txl_lightning.data", "txl_lightning.training"),
    "data": ("hydra", "wandb", "txl_lightning.training", "txl_lightning.evaluation"),
    "reporting": ("lightning", "hydra", "txl_lightning.training", "txl_lightning.evaluation", "txl_lightning.data"),
    "training": ("txl_lightning.evaluation", "txl_lightning.cli"),
    "evaluation": ("txl_lightning.cli",),
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
        wrong = {n for n in imports(path) for f in (*FORBIDDEN[room], "experiments") if n == f or n.startswith(f + ".")}
        assert not wrong, f"{path.name} imports {wrong}"
