"""Rules of docs/house.md that neither the type checker nor the linter of imports sees."""

import ast
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("txl_lightning", "hydra_plugins", "experiments", "benchmarks", "sweeps")


def code() -> list[Path]:
    return [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def short(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_no_room_of_the_package_imports_from_its_front_door() -> None:
    """`from txl_lightning import generate` imports the model, which the linter of imports would not see."""
    for path in (ROOT / "txl_lightning").rglob("*.py"):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ImportFrom) and node.module == "txl_lightning":
                assert {alias.name for alias in node.names} <= {"__version__"}, short(path)


PUBLIC_DESPITE_UNDERSCORE = {"_replace"}  # documented methods of namedtuple


def of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def private_names(path: Path) -> set[str]:
    """Names with a leading underscore that a module takes from a library: imported, or read from an object."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            if module.split(".")[0] in ROOMS:
                continue
            parts = [word for name in (module, *(a.name for a in node.names)) for word in name.split(".")]
            found |= {word for word in parts if re.match(r"_[a-z]", word)}
        elif isinstance(node, ast.Attribute) and re.match(r"_[a-z]", node.attr) and not of_self(node):
            found.add(node.attr)
    return found


def own_private_names() -> set[str]:
    """Names with a leading underscore that our own code defines."""
    names: set[str] = set()
    for path in code():
        names.add(path.stem)
        for node in ast.walk(tree(path)):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and of_self(node):
                names.add(node.attr)
    return names


def test_a_private_api_of_a_library_has_a_test() -> None:
    """A test that names it, and so fails or is found when a new version of the library changes it."""
    own = own_private_names() | PUBLIC_DESPITE_UNDERSCORE
    tests = "".join(p.read_text("utf-8") for p in (ROOT / "tests").rglob("*.py") if p != Path(__file__))
    used = {f"{short(path)}: {name}": name for path in code() for name in private_names(path) - own}
    assert used
    untested = sorted(where for where, name in used.items() if not re.search(rf"\b{name}\b", tests))
    assert not untested, "\n".join(untested)


@pytest.mark.slow
def test_the_linter_of_imports_finds_an_arrow_upwards_inside_a_function(tmp_path: Path) -> None:
    for room in ROOMS:
        shutil.copytree(ROOT / room, tmp_path / room, ignore=lambda _, names: {n for n in names if "." in n[:-3]})
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / "txl_lightning/data/datamodule.py").open("a") as file:
        file.write("\n\ndef planted() -> None:\n    from txl_lightning.training.run import train\n")
    words = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache", "--no-logo"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "txl_lightning.data.datamodule" in done.stdout
