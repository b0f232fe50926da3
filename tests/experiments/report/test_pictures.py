"""Pictures of the first page: each value at its place, on the line of its claim or arm, claims by panel."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.report import pictures
from experiments.report.sections import Number, Table, Text, label, ours, paper
from tests.experiments.report.sample_claim import claim, pending_claim

HERE, PAPER = pictures.HERE, pictures.PAPER


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    found: list[Figure] = []
    monkeypatch.setattr(pictures, "save_figure", lambda figure, stem: found.append(figure))
    return found


def points(axes: Axes) -> dict[tuple[int, str], list[Any]]:
    """Values of the markers and intervals of a panel, by line and look."""
    found = {}
    for line in axes.lines:
        x, y = (np.asarray(values) for values in (line.get_xdata(), line.get_ydata()))
        if len(x) and y[0] != 0:
            kind = line.get_marker() if line.get_marker() != "None" else "interval"
            found[round(float(y[0])), f"{kind} {line.get_color()}"] = [pytest.approx(float(value)) for value in x]
    return found


def texts(axes: Axes) -> list[tuple[int, str]]:
    return [(round(text.get_position()[1]), text.get_text().replace("\u00a0", " ")) for text in axes.texts]


def test_every_claim_has_its_effect_interval_paper_and_mark(tmp_path: Path, drawn: list[Figure]) -> None:
    claims: list[dict[str, Any]] = [
        claim("holds", 4.2, 2.7),
        claim("does not hold", -153.0, None, relative_low=None, relative_high=-20.0),
        claim("within noise", 1.0, 3.0, relative_low=None, relative_high=None),
    ]
    assert pictures.draw_claims(tmp_path / "claims.png", claims)
    (axes,) = drawn[0].axes
    assert points(axes) == {
        (0, f"interval {HERE}"): [3.2, 5.2],
        (0, f"o {HERE}"): [4.2],
        (0, f"D {PAPER}"): [2.7],
        (1, f"interval {HERE}"): [-153.0, -20.0],
        (1, f"< {HERE}"): [-153.0],  # open below
        (1, f"o {HERE}"): [-153.0],
        (2, f"o {HERE}"): [1.0],
        (2, f"D {PAPER}"): [3.0],
    }
    assert texts(axes) == [
        (0, "1  short holds"),
        (0, "✓ holds"),
        (0, "+4.2 % (paper +2.7 %)"),
        (1, "2  short does not hold"),
        (1, "✗ does not hold"),
        (1, "−153 %"),
        (2, "3  short within noise"),
        (2, "≈ within noise"),
        (2, "+1.0 % (paper +3.0 %)"),
    ]
    left, right = axes.get_xlim()
    assert left < -153
    assert right > 5.2
    handles = [(line.get_label(), line.get_marker(), line.get_color()) for line in drawn[0].legends[0].get_lines()]
    assert handles == [("here, 95 % interval", "o", HERE), ("paper", "D", PAPER)]


def test_each_panel_has_its_unit_and_pending_claims_are_left_out(tmp_path: Path, drawn: list[Figure]) -> None:
    lengths = {"unit": "tokens", "effect": -128.0, "low": None, "high": 32.0}
    claims = [
        pending_claim(),
        claim("does not hold", -40.0, 75.0, **lengths) | {"panel": "lengths"},
        claim("holds", 150.0, 400.0, unit="%") | {"panel": "speed"},
        claim("not tested", effect=0.25, low=0.2, high=0.3, unit=None, theirs=None) | {"panel": "attention"},
    ]
    assert pictures.draw_claims(tmp_path / "claims.png", claims)
    tokens, factor, plain = drawn[0].axes
    assert points(tokens) == {
        (0, f"interval {HERE}"): [-128.0, 32.0],
        (0, f"< {HERE}"): [-128.0],
        (0, f"o {HERE}"): [-128.0],
    }
    assert points(factor) == {
        (0, f"interval {HERE}"): [2.49, 2.51],
        (0, f"o {HERE}"): [2.5],
        (0, f"D {PAPER}"): [5.0],
    }
    assert points(plain) == {(0, f"interval {HERE}"): [0.2, 0.3], (0, f"o {HERE}"): [0.25]}
    assert [axes.texts[2].get_text().replace("\u00a0", " ") for axes in drawn[0].axes] == [
        "−128 tokens = −40.0 % (paper +75.0 %)",
        "× 2.50 (paper × 5.00)",
        "+0.25",
    ]
    assert [axes.texts[0].get_text()[0] for axes in drawn[0].axes] == ["2", "3", "4"]
    assert not pictures.draw_claims(tmp_path / "claims.png", [pending_claim()])


def test_the_arms_are_in_the_papers_order_with_loss_error_and_perplexity(tmp_path: Path, drawn: list[Figure]) -> None:
    columns = (label("arm"), ours("best", "test, best", "bpc"), paper("paper_best", "best", "ppl"))
    losses = {"b": (Number(2.1, 3, 0.01), 29.02), "a": (Number(2.0, 3), 26.77), "to come": (None, 30.1)}
    rows = {
        name: {"arm": Text(f"arm {name}"), "best": loss, "paper_best": Number(theirs, 2)}
        for name, (loss, theirs) in losses.items()
    }
    assert pictures.draw_overview(tmp_path / "overview.png", Table("table_6", "Table 6", columns, rows))
    (axes,) = drawn[0].axes
    assert points(axes) == {
        (0, f"interval {HERE}"): [2.0, 2.0],
        (0, f"o {HERE}"): [2.0],
        (1, f"interval {HERE}"): [2.09, 2.11],
        (1, f"o {HERE}"): [2.1],
    }
    assert texts(axes)[:4] == [(0, "arm a: 2.000"), (0, "1.  26.77"), (1, "arm b: 2.100 ± 0.010"), (1, "4.  29.02")]
    assert not pictures.draw_overview(tmp_path / "overview.png", Table("table_6", "Table 6", columns, {}))
