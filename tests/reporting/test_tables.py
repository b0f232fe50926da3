"""Markdown tables."""

from txl_lightning.reporting.tables import markdown_table


def test_numbers_are_aligned_to_the_right() -> None:
    table = markdown_table(["arm", "bpc"], [["on", "1.94 ± 0.01"], ["off", "2.08"], ["none", "–"]])
    assert table.splitlines()[1] == "| --- | ---: |"
    assert table.splitlines()[2] == "| on | 1.94 ± 0.01 |"
