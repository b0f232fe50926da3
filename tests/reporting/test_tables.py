"""Tables in Markdown."""

from txl_lightning.reporting.tables import markdown_table


def test_numbers_are_aligned_to_the_right() -> None:
    table = markdown_table(["arm", "bpc"], [["on", "1.94 ± 0.01"], ["off", "2.08"], ["none", "–"]])
    assert table.splitlines()[1] == "| --- | ---: |"
    assert table.splitlines()[2] == "| on | 1.94 ± 0.01 |"


NAME = "<script>alert(1)</script> a|b\\|c\n| d\u2028*e* `f` [g](h) &lt;"
CELL = r"&lt;script&gt;alert(1)&lt;/script&gt; a\|b\\\|c \| d \*e\* \`f\` [g\](h) &amp;lt;"


def test_a_name_stays_one_cell_without_markup() -> None:
    lines = [f"| {CELL} | loss |", "| --- | ---: |", f"| {CELL} | 1 |"]
    assert markdown_table([NAME, "loss"], [[NAME, "1"]]).splitlines() == lines
