"""Figures that all reports share."""

from pathlib import Path

from txl_lightning.reporting.canvas import new_figure, plain_text, save_with_legend


def test_names_are_shown_as_they_are(tmp_path: Path) -> None:
    figure = new_figure()
    axes = figure.add_subplot()
    names = ["$x^$", "_hidden", "a$b", "$2"]
    for name in names:
        axes.plot([1, 2], label=plain_text(name))
    save_with_legend(figure, axes, tmp_path / "f")
    picture = (tmp_path / "f.svg").read_text()
    assert all(f"<!-- {name} -->" in picture.replace("<!--  ", "<!-- ") for name in names)


def test_a_legend_lies_within_its_figure(tmp_path: Path) -> None:
    figure = new_figure(5.4)
    axes = figure.add_subplot()
    for name in "ab":
        axes.plot([1, 2], label=name * 60)
    save_with_legend(figure, axes, tmp_path / "f.png")
    (legend,) = figure.legends
    extent = legend.get_window_extent()
    assert 0 <= extent.x0 < extent.x1 <= figure.bbox.width
    assert [path.name for path in tmp_path.iterdir()] == ["f.png"]
