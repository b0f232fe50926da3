"""Rules of docs/house.md that neither the type checker nor the linter of imports sees."""

import re
from pathlib import Path

from tests.docs.pages import ROOT

ROOMS = ("txl_lightning", "hydra_plugins", "experiments", "benchmarks", "sweeps")
CODE = {path: path.read_text("utf-8") for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))}


def test_no_room_of_the_package_imports_from_its_front_door() -> None:
    """`from txl_lightning import generate` imports the model, which the linter of imports would not see."""
    for path, text in CODE.items():
        if path.is_relative_to(ROOT / "txl_lightning"):
            assert set(re.findall(r"^ *from txl_lightning import (.+)", text, re.MULTILINE)) <= {"__version__"}, path


def test_a_private_api_of_a_library_has_a_test() -> None:
    """A test that names it, and so fails or is found when a new version of the library changes it."""
    defined = re.findall(r"(?:def |class |self\.)(_[a-z]\w*)", "".join(CODE.values()))
    own = {*defined, *(path.stem for path in CODE), "_replace"}  # a documented method of namedtuple
    tests = "".join(p.read_text("utf-8") for p in (ROOT / "tests").rglob("*.py") if p != Path(__file__))
    # Read from an object that is neither self nor cls, or imported.
    used = {
        f"{path.relative_to(ROOT)}: {name}": name
        for path, text in CODE.items()
        for name in re.findall(r"(?:(?<!\bself)(?<!\bcls)\.|import )(_[a-z]\w*)", text)
        if name not in own
    }
    assert used
    untested = sorted(where for where, name in used.items() if not re.search(rf"\b{name}\b", tests))
    assert not untested, "\n".join(untested)
