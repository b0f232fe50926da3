"""Panels of Weights & Biases: the values that they are given."""

from pathlib import Path
from typing import Any

import pytest
import wandb

from txl_lightning.reporting.wandb_panels import log_image, log_line_series, log_table


class Run:
    """Run that keeps what is logged."""

    def __init__(self) -> None:
        self.logged: dict[str, Any] = {}

    def log(self, values: dict[str, Any]) -> None:
        self.logged |= values


def test_panels_have_their_axes_and_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    run: Any = Run()
    monkeypatch.setattr(wandb.plot, "line_series", lambda **given: given)
    log_line_series(run, "a/curve", (1, 2), {"m": (3, 4), "n": (5, 6)}, "context", "Loss")
    given = {"xs": [1, 2], "ys": [[3, 4], [5, 6]], "keys": ["m", "n"], "title": "Loss", "xname": "context"}
    assert run.logged["a/curve"] == given
    log_table(run, "a/table", ("model", "loss"), [("m", 1.5), ("n", None)])
    assert run.logged["a/table"].columns == ["model", "loss"]
    assert run.logged["a/table"].data == [["m", "1.5"], ["n", "None"]]
    monkeypatch.setattr(wandb, "Image", lambda path, caption: (path, caption))
    log_image(run, "a/image", Path("f.png"), "Figure 3")
    assert run.logged["a/image"] == ("f.png", "Figure 3")
