"""Tables in Markdown and LaTeX."""

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


def test_a_pipe_in_a_cell_is_escaped_once() -> None:
    assert markdown_table(["name"], [["a|b"], [r"a\|b"]]).splitlines()[2:] == [r"| a\|b |", r"| a\|b |"]
