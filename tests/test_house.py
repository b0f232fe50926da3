"""Rules of docs/house.md that neither the type checker nor the linter of imports sees."""

import re
from pathlib import Path

from tests import weights
from tests.docs.pages import ROOT
from tests.weights import Weight, weigh

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
    for path, text in sources("txl_lightning").items():
        for number, line in enumerate(text.splitlines(), 1):
            if turns.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert found == []


def test_no_room_is_heavier_than_its_limits() -> None:
    """When a room is lighter, `python -m tests.weights --write ROOM` lowers its limits."""
    limits = weights.read_table(weights.TABLE.read_text("utf-8"))
    messages = weights.excesses(weights.weigh_rooms(), limits)
    assert not messages, "\n".join(messages)


def test_a_file_is_weighed_by_its_syntax_nodes() -> None:
    # Module, Assign, x, BinOp, BinOp, y, Add, z, Add, 1
    assert weigh("x = y + z + 1\n") == Weight(nodes=10, packed_lines=0, long_functions=0)


def test_a_docstring_weighs_its_statement_alone_and_a_comment_nothing() -> None:
    bare = weigh("def f():\n    return 1\n")
    documented = weigh('def f():\n    """Say what f does."""\n    # A comment.\n    return 1\n')
    assert documented.nodes == bare.nodes + 1


def test_a_line_with_more_than_20_nodes_is_packed() -> None:
    line_of_20 = "[" + "1, " * 18 + "]\n"  # Expr, List and 18 constants
    line_of_21 = "[" + "1, " * 19 + "]\n"
    assert weigh(line_of_20).packed_lines == 0
    assert weigh(line_of_21).packed_lines == 1


def test_line_breaks_leave_the_nodes() -> None:
    packed = "[" + "1, " * 60 + "]\n"
    written_out = "[" + "1,\n" * 60 + "]\n"
    assert weigh(packed).nodes == weigh(written_out).nodes


def test_a_function_with_more_than_300_nodes_is_long() -> None:
    head = "def f():\n"  # FunctionDef, arguments
    statement = "    pass\n"
    assert weigh(head + statement * 298).long_functions == 0
    assert weigh(head + statement * 299).long_functions == 1


def test_a_room_is_a_second_level_folder_of_the_large_folders() -> None:
    assert weights.room_of(Path("txl_lightning/cli.py")) == "txl_lightning"
    assert weights.room_of(Path("txl_lightning/model/kernels/scores.py")) == "txl_lightning/model"
    assert weights.room_of(Path("examples/other/t5.py")) == "examples"


def test_a_measure_above_its_limit_is_named_with_both_numbers() -> None:
    limits = {"txl_lightning/data": Weight(100, 2, 0)}
    rooms = {"txl_lightning/data": Weight(90, 3, 0)}
    assert weights.excesses(rooms, limits) == ["txl_lightning/data: 3 packed lines, 2 allowed"]


def test_a_room_without_limits_is_refused() -> None:
    messages = weights.excesses({"txl_lightning/new": Weight(1, 0, 0)}, {})
    assert messages == ["txl_lightning/new: no row in tests/weights.txt, --write adds one"]


def test_limits_are_lowered_and_never_raised() -> None:
    limits = {"tests": Weight(100, 2, 0)}
    rooms = {"tests": Weight(90, 5, 0)}
    assert weights.lower(limits, rooms) == {"tests": Weight(90, 2, 0)}


def test_limits_are_read_as_they_are_written() -> None:
    limits = {"tests": Weight(100, 2, 0), "txl_lightning/model": Weight(5000, 0, 1)}
    assert weights.read_table(weights.write_table(limits)) == limits
