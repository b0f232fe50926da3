"""Count what a reader of each room must hold in mind; tests/weights.txt limits it.

python -m tests.weights                      print every room, and the limits that it exceeds
python -m tests.weights --write [ROOM ...]   lower the limits of these rooms, or of all

A limit never rises. A new room gets a row; the row of a room that is gone is dropped.
"""

import ast
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_name("weights.txt")
# The folders with code. In the first three each subfolder is a room.
DIVIDED = ("txl_lightning", "experiments", "tests")
WHOLE = ("benchmarks", "docs", "examples", "hydra_plugins", "sweeps")

MEASURES = ("nodes", "packed lines", "long functions")
PACKED_NODES = 20
LONG_NODES = 300
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DOCUMENTED = (ast.Module, ast.ClassDef, *FUNCTIONS)
HEAD = """\
# Limits of tests/test_house.py. `python -m tests.weights --write` lowers them.
# A limit rises only by hand, when code comes from another room.
# Columns: syntax nodes, lines with more than 20 nodes, functions with more than 300 nodes.
"""


def weigh(source: str) -> list[int]:
    """Return MEASURES of a module; docstrings, comments and Load/Store/Del do not count."""
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
    return [len(nodes), len(packed), long_functions]


def syntax_nodes(tree: ast.AST) -> list[ast.AST]:
    """Return the nodes of a tree without Load, Store and Del."""
    return [node for node in ast.walk(tree) if not isinstance(node, ast.expr_context)]


def weigh_rooms() -> dict[str, list[int]]:
    """Return the measures of every room of the project."""
    rooms: dict[str, list[int]] = {}
    for folder in DIVIDED + WHOLE:
        for path in (ROOT / folder).rglob("*.py"):
            folders = path.relative_to(ROOT).parts[:-1]
            room = "/".join(folders[:2]) if folder in DIVIDED else folder
            total = rooms.setdefault(room, [0, 0, 0])
            for i, n in enumerate(weigh(path.read_text("utf-8"))):
                total[i] += n
    return rooms


def read_table() -> dict[str, list[int]]:
    """Return the limits in weights.txt."""
    limits = {}
    for line in TABLE.read_text("utf-8").splitlines():
        if not line.startswith("#"):
            room, *measures = line.split()
            limits[room] = [int(measure) for measure in measures]
    return limits


def table(limits: dict[str, list[int]]) -> str:
    """Return the text of weights.txt, one room a line."""
    text = HEAD
    for room, (nodes, packed_lines, long_functions) in sorted(limits.items()):
        text += f"{room:<30} {nodes:>7} {packed_lines:>4} {long_functions:>3}\n"
    return text


def excesses(rooms: dict[str, list[int]], limits: dict[str, list[int]]) -> list[str]:
    """Return a message for each measure above its limit; a room without a row may have nothing."""
    messages = []
    for room, weight in rooms.items():
        limit = limits.get(room, [0, 0, 0])
        for name, now, allowed in zip(MEASURES, weight, limit, strict=True):
            if now > allowed:
                messages.append(f"{room}: {now} {name}, {allowed} allowed (tests/weights.txt)")
    return messages


def main() -> None:
    """Print the rooms and what exceeds its limit, or lower the limits."""
    rooms = weigh_rooms()
    limits = read_table()
    if sys.argv[1:2] != ["--write"]:
        print(table(rooms), *excesses(rooms, limits), sep="\n")
        return
    lowered = {}
    for room, weight in rooms.items():
        limit = limits.get(room, weight)
        if room in sys.argv[2:] or not sys.argv[2:]:
            limit = [min(pair) for pair in zip(limit, weight, strict=True)]
        lowered[room] = limit
    TABLE.write_text(table(lowered), "utf-8")


if __name__ == "__main__":
    main()
