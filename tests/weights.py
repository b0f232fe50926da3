"""Count what a reader of each room must hold in mind; tests/weights.txt limits it.

python -m tests.weights                      print every room, and the limits that it exceeds
python -m tests.weights --write [ROOM ...]   lower the limits of these rooms, or of all

A limit never rises. A new room gets a row; the row of a room that is gone is dropped.
"""

import argparse
import ast
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_name("weights.txt")
# The folders with code. In the first three each subfolder is a room.
DIVIDED = ("txl_lightning", "experiments", "tests")
WHOLE = ("benchmarks", "docs", "examples", "hydra_plugins", "sweeps")

PACKED_NODES = 20
LONG_NODES = 300
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DOCUMENTED = (ast.Module, ast.ClassDef, *FUNCTIONS)
HEAD = """\
# Limits of tests/test_house.py. `python -m tests.weights --write` lowers them.
# A limit rises only by hand, when code comes from another room.
# Columns: syntax nodes, lines with more than 20 nodes, functions with more than 300 nodes.
"""


class Weight(NamedTuple):
    """Measures of a file or room."""

    nodes: int
    packed_lines: int
    long_functions: int


def weigh(source: str) -> Weight:
    """Return the measures of a module; docstrings, comments and Load/Store/Del do not count."""
    nodes = syntax_nodes(ast.parse(source))
    for node in tuple(nodes):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            nodes.remove(node.body[0].value)
    nodes_on_line: Counter[int] = Counter()
    long_functions = 0
    for node in nodes:
        if hasattr(node, "lineno"):
            nodes_on_line[node.lineno] += 1
        if isinstance(node, FUNCTIONS) and len(syntax_nodes(node)) > LONG_NODES:
            long_functions += 1
    packed = [n for n in nodes_on_line.values() if n > PACKED_NODES]
    return Weight(len(nodes), len(packed), long_functions)


def syntax_nodes(tree: ast.AST) -> list[ast.AST]:
    """Return the nodes of a tree without Load, Store and Del."""
    return [node for node in ast.walk(tree) if not isinstance(node, ast.expr_context)]


def room_of(path: Path) -> str:
    """Return the room of a file; the path is relative to the root of the project."""
    folders = path.parts[:-1]
    if folders[0] in DIVIDED:
        return "/".join(folders[:2])
    return folders[0]


def weigh_rooms(root: Path = ROOT) -> dict[str, Weight]:
    """Return the measures of every room of a checkout."""
    rooms: dict[str, Weight] = {}
    for folder in DIVIDED + WHOLE:
        for path in (root / folder).rglob("*.py"):
            room = room_of(path.relative_to(root))
            before = rooms.get(room, Weight(0, 0, 0))
            file = weigh(path.read_text("utf-8"))
            rooms[room] = Weight(*map(sum, zip(before, file, strict=True)))
    return rooms


def row(room: str, weight: Weight) -> str:
    """Return a line of the table."""
    nodes, packed_lines, long_functions = weight
    return f"{room:<30} {nodes:>7} {packed_lines:>4} {long_functions:>3}\n"


def write_table(limits: dict[str, Weight]) -> str:
    """Return the table of limits, one room a line."""
    rows = [row(room, limit) for room, limit in sorted(limits.items())]
    return HEAD + "".join(rows)


def read_table(table: str) -> dict[str, Weight]:
    """Return the limits of a table."""
    limits = {}
    for line in table.splitlines():
        if not line.startswith("#"):
            room, *measures = line.split()
            limits[room] = Weight(*map(int, measures))
    return limits


def excesses(rooms: dict[str, Weight], limits: dict[str, Weight]) -> list[str]:
    """Return a message for each measure above its limit and each room without limits."""
    messages = []
    for room, weight in rooms.items():
        if room not in limits:
            messages.append(f"{room}: no row in tests/weights.txt, --write adds one")
            continue
        for measure, now, allowed in zip(Weight._fields, weight, limits[room], strict=True):
            if now > allowed:
                name = measure.replace("_", " ")
                messages.append(f"{room}: {now} {name}, {allowed} allowed")
    return messages


def lower(limits: dict[str, Weight], rooms: dict[str, Weight]) -> dict[str, Weight]:
    """Return the limits, lowered to the present measures of the given rooms."""
    lowered = dict(limits)
    for room, weight in rooms.items():
        limit = limits.get(room, weight)
        lowered[room] = Weight(*map(min, zip(limit, weight, strict=True)))
    return lowered


def main() -> None:
    """Print the rooms and what exceeds its limit, or lower the limits."""
    parser = argparse.ArgumentParser(description="Weigh the rooms of the project.")
    parser.add_argument("--write", nargs="*", metavar="ROOM", help="lower these limits, or all")
    chosen = parser.parse_args().write
    rooms = weigh_rooms()
    limits = read_table(TABLE.read_text("utf-8"))
    if chosen is None:
        print(write_table(rooms), *excesses(rooms, limits), sep="\n")
        return
    limits = {room: limit for room, limit in limits.items() if room in rooms}
    lowered = lower(limits, {room: rooms[room] for room in chosen or rooms})
    TABLE.write_text(write_table(lowered), "utf-8")


if __name__ == "__main__":
    main()
