"""Tables in Markdown and LaTeX."""

import re

import pytest

from tests.docs.pages import ROOT
from txl_lightning.reporting.tables import latex_table, markdown_table


def test_numbers_are_aligned_to_the_right() -> None:
    table = markdown_table(["arm", "bpc"], [["on", "1.94 ± 0.01"], ["off", "2.08"], ["none", "–"]])
    assert table.splitlines()[1] == "| --- | ---: |"
    assert table.splitlines()[2] == "| on | 1.94 ± 0.01 |"


def test_signs_of_a_cell_are_escaped_in_latex() -> None:
    table = latex_table(["model_a", "r = 0.1"], [["50 % & more", "≥ 128 [96, 160]"], ["b", "1.9 ± 0.1"]])
    assert table.splitlines() == [
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"model\_a & r = 0.1 \\",
        r"\midrule",
        r"50 \% \& more & $\geq$ 128 [96, 160] \\",
        r"b & 1.9 $\pm$ 0.1 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_names_of_models_are_no_commands_in_latex() -> None:
    table = latex_table(["model", "loss"], [["a|b", "1"], ["[c] <d>", "2"], ["*e", "3"]])
    assert table.splitlines()[4:7] == [r"a$|$b & 1 \\", r"{}[c] $<$d$>$ & 2 \\", r"{}*e & 3 \\"]


NAME = "<script>alert(1)</script> a|b\\|c\n| d\u2028*e* `f` [g](h) &lt;"
CELL = r"&lt;script&gt;alert(1)&lt;/script&gt; a\|b\\\|c \| d \*e\* \`f\` [g\](h) &amp;lt;"


def test_a_name_stays_one_cell_without_markup() -> None:
    lines = [f"| {CELL} | loss |", "| --- | ---: |", f"| {CELL} | 1 |"]
    assert markdown_table([NAME, "loss"], [[NAME, "1"]]).splitlines() == lines
    assert latex_table(["model", "loss"], [["a\n\nb", "1"]]).splitlines()[4] == r"a b & 1 \\"


@pytest.mark.parametrize("folder", ["txl_lightning", "experiments", "sweeps"])
def test_every_markdown_table_is_made_in_one_place(folder: str) -> None:
    rules = [path.name for path in (ROOT / folder).rglob("*.py") if re.search(r"-{3}:?( ?\||\")", path.read_text())]
    assert rules == (["tables.py"] if folder == "txl_lightning" else [])
