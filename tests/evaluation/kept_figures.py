"""Figures kept in memory, and the curves that they show."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Figures = dict[str, Figure]


@contextmanager
def kept_figures() -> Iterator[Figures]:
    """Collect figures by the name of their file, which stays empty."""
    figures: Figures = {}

    def keep(figure: Figure, path: Any, **_: Any) -> None:
        figures[
            re.sub(
                r"^\.part-\w+-",
                "",
                Path(path).name,
            )
        ] = figure
        Path(path).touch()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", keep)
        yield figures


def curves(axes: Axes) -> dict[str, tuple[list[float], list[float]]]:
    """Return x and y of the labelled lines."""
    lines = {str(line.get_label()): line.get_data() for line in axes.get_lines()}
    return {
        name: tuple(np.asarray(x).tolist() for x in xy)
        for name, xy in lines.items()
        if name[:6] != "_child"
    }
