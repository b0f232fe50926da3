"""Picture of the claims: each value at its place, on the line of its claim."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from experiments.report import verdicts
from tests.experiments.report.sample_claim import claim


def test_every_claim_has_its_effect_interval_paper_and_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(verdicts, "save_figure", lambda figure, stem: drawn.append(figure))
    claims: list[dict[str, Any]] = [
        claim("holds", 4.2, 2.7),
        claim("does not hold", -153.0, None) | {"relative_low": None, "relative_high": -20.0},
        claim("within noise", 1.0, 3.0) | {"relative_low": None, "relative_high": None},
    ]
    verdicts.draw_claims(tmp_path / "claims.png", claims)
    (axes,) = drawn[0].axes
    points: dict[tuple[int, str], list[float]] = {}
    for line in axes.lines:
        x, y = line.get_xdata(), line.get_ydata()
        if len(x) and round(float(y[0]) - 0.08, 6) in (0, 1, 2):
            kind = line.get_marker() if line.get_marker() != "None" else "interval"
            points[round(y[0]), f"{kind} {line.get_color()}"] = [float(value) for value in x]
    here, paper = verdicts.HERE, verdicts.PAPER
    assert points == {
        (0, f"interval {here}"): [pytest.approx(3.2), pytest.approx(5.2)],
        (0, f"o {here}"): [4.2],
        (0, f"D {paper}"): [2.7],
        (1, f"interval {here}"): [-153.0, -20.0],
        (1, f"< {here}"): [-153.0],  # open below
        (1, f"o {here}"): [-153.0],
        (2, f"o {here}"): [1.0],
        (2, f"D {paper}"): [3.0],
    }
    texts = [(round(text.get_position()[1]), text.get_text().replace("\u00a0", " ")) for text in axes.texts]
    assert texts == [
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
    assert handles == [("here, 95 % interval", "o", here), ("paper", "D", paper)]
