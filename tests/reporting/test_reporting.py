"""Tables and figures."""

from pathlib import Path

from txl_lightning.reporting.canvas import line_figure, short
from txl_lightning.reporting.tables import markdown_table


def test_numbers_are_aligned_to_the_right() -> None:
    table = markdown_table(["arm", "bpc"], [["on", "1.94 ± 0.01"], ["off", "2.08"], ["none", "–"]])
    assert table.splitlines()[1] == "| --- | ---: |"
    assert table.splitlines()[2] == "| on | 1.94 ± 0.01 |"


def test_a_figure_is_a_png_with_all_its_curves(tmp_path: Path) -> None:
    line_figure(tmp_path / "f.png", {"a": [([1, 2], [3, 2])], "b": [([1, 2], [4, 3])]}, "x (unit)", "y (unit)", "title")
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")


def test_short_numbers() -> None:
    assert [short(x) for x in (0.5, 999, 1500, 2e6, 3e9)] == ["0.5", "999", "1.5k", "2M", "3G"]
