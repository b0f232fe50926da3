"""Rules of docs/house.md: sizes, names, imports, docstrings, private APIs."""

import ast
import re
import shutil
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("txl_lightning", "hydra_plugins", "experiments", "benchmarks", "sweeps")
DOORS = {
    "__init__.py",
    "__main__.py",
    "options.py",
    "command.py",
    "report.py",
    "figures.py",
}  # one of each in many folders
MOST_FILES = 12
MOST_LINES = 400
BAD_FIRST_WORDS = ("What", "That", "Which", "Who", "And", "Also", "It", "The same")


def code() -> list[Path]:
    return [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


def own_files() -> list[Path]:
    tests = sorted((ROOT / "tests").rglob("*.py"))
    return [*code(), *sorted((ROOT / "examples").rglob("*.py")), *tests]


@cache
def text(path: Path) -> str:
    return path.read_text("utf-8")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(text(path))


@cache
def words(path: Path) -> set[str]:
    return set(re.findall(r"\w+", text(path))) if path.is_file() else set()


@cache
def exists(path: Path) -> bool:
    return path.exists()


def short(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_a_folder_has_at_most_twelve_files() -> None:
    files = (path for room in ROOMS for path in (ROOT / room).rglob("*") if path.is_file())
    counts = Counter(short(path.parent) for path in files if "__pycache__" not in path.parts)
    results = "experiments/results"
    assert not {folder: n for folder, n in counts.items() if n > MOST_FILES and not folder.startswith(results)}


def test_a_file_has_at_most_four_hundred_lines() -> None:
    lines = {short(path): len(path.read_text("utf-8").splitlines()) for path in own_files()}
    assert len(lines) > 200
    assert not {path: n for path, n in lines.items() if n > MOST_LINES}


def test_a_basename_occurs_once() -> None:
    counts = Counter(path.name for path in code() if path.name not in DOORS)
    assert not {name for name, n in counts.items() if n > 1}


def test_a_class_name_occurs_once() -> None:
    nodes = (node for path in code() for node in ast.walk(tree(path)))
    counts = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    assert len(counts) > 100
    assert not {name for name, n in counts.items() if n > 1}


def missing_imports(path: Path) -> list[str]:
    """Imports of our own modules and names, also inside functions, that do not exist."""
    wrong = []
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            wanted = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            wanted = [(node.module or "", alias.name) for alias in node.names]
        else:
            continue
        for module, name in wanted:
            if module.split(".")[0] not in (*ROOMS, "tests"):
                continue
            base = ROOT.joinpath(*module.split("."))
            file = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
            submodule = exists(base / f"{name}.py") or exists(base / name)
            if name and not submodule and name not in words(file):
                wrong.append(f"{short(path)}: {module}.{name}")
            elif not name and not exists(file):
                wrong.append(f"{short(path)}: {module}")
    return wrong


def test_every_import_of_our_own_exists() -> None:
    assert not [wrong for path in own_files() for wrong in missing_imports(path)]


def test_no_room_of_the_package_imports_from_its_front_door() -> None:
    """`from txl_lightning import generate` imports the model, which the linter of imports would not see."""
    for path in (ROOT / "txl_lightning").rglob("*.py"):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ImportFrom) and node.module == "txl_lightning":
                assert {alias.name for alias in node.names} <= {"__version__"}, short(path)


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    wrong = [
        f"{short(path)}: {docstring.splitlines()[0]}"
        for path in code()
        for node in ast.walk(tree(path))
        if isinstance(node, kinds) and (docstring := ast.get_docstring(node))
        if re.match(rf"({'|'.join(BAD_FIRST_WORDS)})\b", docstring)
    ]
    assert not wrong, "\n".join(wrong)


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


IMPORT_LINTER = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache", "--no-logo"]
PLANTED = {
    "upward": ("model/memory.py", "import txl_lightning.runs.metrics\n", "txl_lightning.model.memory"),
    "inside_a_function": (
        "data/vocabulary/symbols.py",
        "def planted() -> None:\n    from txl_lightning.training.run import train\n",
        "txl_lightning.data.vocabulary.symbols",
    ),
    "circle": ("model/memory.py", "import txl_lightning.model.planted_circle\n", "- .planted_circle -> .memory"),
    "between_measurements": (
        "evaluation/recl/report.py",
        "import txl_lightning.evaluation.speed.report\n",
        "txl_lightning.evaluation.recl.report",
    ),
    "library": ("model/positions.py", "def planted() -> None:\n    import hydra\n", "not allowed to import hydra"),
}


@pytest.fixture(scope="module")
def copied_house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    house = tmp_path_factory.mktemp("house")
    for room in ROOMS:
        shutil.copytree(ROOT / room, house / room, ignore=lambda _, names: {n for n in names if "." in n[:-3]})
    shutil.copy(ROOT / "pyproject.toml", house)
    return house


def linted(house: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(IMPORT_LINTER, cwd=house, capture_output=True, text=True)


def test_imports_run_downwards(copied_house: Path) -> None:
    done = linted(copied_house)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("plant", PLANTED)
def test_a_planted_import_is_found(copied_house: Path, plant: str) -> None:
    file, planted, named = PLANTED[plant]
    path = copied_house / "txl_lightning" / file
    before = path.read_text("utf-8")
    partner = copied_house / "txl_lightning/model/planted_circle.py"
    try:
        path.write_text(before + "\n\n" + planted, "utf-8")
        if plant == "circle":
            partner.write_text("import txl_lightning.model.memory\n")
        done = linted(copied_house)
    finally:
        path.write_text(before, "utf-8")
        partner.unlink(missing_ok=True)
    assert done.returncode == 1, done.stdout
    assert "BROKEN" in done.stdout
    assert named in done.stdout
