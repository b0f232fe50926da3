"""Figures that all reports share."""

from pathlib import Path

from txl_lightning.reporting.canvas import line_figure, short


def test_a_figure_is_a_png_with_all_its_curves(tmp_path: Path) -> None:
    line_figure(tmp_path / "f.png", {"a": [([1, 2], [3, 2])], "b": [([1, 2], [4, 3])]}, "x (unit)", "y (unit)", "title")
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")


def test_short_numbers() -> None:
    assert [short(x) for x in (0.5, 999, 1500, 2e6, 3e9)] == ["0.5", "999", "1.5k", "2M", "3G"]
