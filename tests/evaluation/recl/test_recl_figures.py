"""Figures of effective context lengths: axes that can be read."""

from pathlib import Path

import pytest
from matplotlib.axes import Axes

from txl_lightning.evaluation.recl import figures


def test_no_label_stands_between_zero_and_the_first_decade(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Axes] = []
    monkeypatch.setattr(figures, "save_with_legend", lambda figure, axes, stem: drawn.append(axes))
    figures.gain_figure(tmp_path / "f", [16, 32, 48], {"a": [10.0, 0.0]}, [0.95, 0.95], "gains")
    shown = drawn[0].yaxis.get_major_formatter()
    assert [shown(value, 0) for value in (0, 0.01, 0.1, 10)] == ["0", "", "0.1", "10"]
    assert drawn[0].figure.get_figwidth() <= 5.6  # inches: wider ones have too small letters on a phone
