"""Rules of docs/house.md that neither the type checker nor the linter of imports sees."""

import re
from pathlib import Path

from tests import weights
from tests.docs.pages import ROOT

ROOMS = ("txl_lightning", "hydra_plugins", "experiments", "benchmarks", "sweeps")


def sources(folder: str) -> dict[Path, str]:
    """Return the text of every module of a folder."""
    return {path: path.read_text("utf-8") for path in sorted((ROOT / folder).rglob("*.py"))}


def test_no_room_of_the_package_imports_from_its_front_door() -> None:
    """`from txl_lightning import generate` hides from the import linter that it needs the model."""
    for path, text in sources("txl_lightning").items():
        names = re.findall(r"^ *from txl_lightning import (.+)", text, re.MULTILINE)
        assert set(names) <= {"__version__"}, path


def test_a_private_api_of_a_library_has_a_test() -> None:
    """A test names it, and so fails or is found when the library changes it."""
    code: dict[Path, str] = {}
    for room in ROOMS:
        code.update(sources(room))
    defined = set(re.findall(r"(?:def |class |self\.)(_[a-z]\w*)", "".join(code.values())))
    defined.update(path.stem for path in code)
    defined.add("_replace")  # a documented method of namedtuple

    tests = sources("tests")
    del tests[Path(__file__)]
    tested = set(re.findall(r"\b_\w+", "".join(tests.values())))

    untested = []
    for path, text in code.items():
        # Names that are imported, or read from an object that is neither self nor cls.
        used = re.findall(r"(?:(?<!\bself)(?<!\bcls)\.|import )(_[a-z]\w*)", text)
        for name in set(used) - defined - tested:
            untested.append(f"{path.relative_to(ROOT)}: {name}")
    assert untested == []


def test_sentences_name_things_again() -> None:
    """Turns of speech that readers stumbled over: name the thing again, or begin a new sentence."""
    turns = re.compile(r"\b(?:that|those) of\b|\bof which\b|\bone's own\b")
    found = []
    for room in ROOMS:
        for path, text in sources(room).items():
            for number, line in enumerate(text.splitlines(), 1):
                if turns.search(line):
                    found.append(f"{path}:{number}: {line}")
    assert found == []


def test_no_room_is_heavier_than_its_limits() -> None:
    """When a room is lighter, `python -m tests.weights --write ROOM` lowers its limits."""
    messages = weights.excesses(weights.weigh_rooms(), weights.read_table())
    assert not messages, "\n".join(messages)


def test_a_file_is_weighed_by_its_syntax_nodes() -> None:
    # Module, FunctionDef, arguments, the statement of the docstring, Return, BinOp, y, Add, 1
    assert weights.weigh('def f():\n    """Say it."""\n    # Why.\n    return y + 1\n') == [9, 0, 0]
    line_of_21 = "[" + "1, " * 19 + "]\n"  # Expr, List and 19 constants
    assert weights.weigh(line_of_21) == [22, 1, 0]
    function_of_301 = "def f():\n" + "    pass\n" * 299
    assert weights.weigh(function_of_301) == [302, 0, 1]


def test_a_measure_above_its_limit_is_named_with_both_numbers() -> None:
    messages = weights.excesses({"data": [90, 3, 0]}, {"data": [100, 2, 0]})
    assert messages == ["data: 3 packed lines, 2 allowed (tests/weights.txt)"]
