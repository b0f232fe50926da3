"""Stopwatch of a reproduction."""

import json
from pathlib import Path

import pytest

from experiments.engine.session import Stopwatch


def test_the_stopwatch_continues_its_sum(tmp_path: Path) -> None:
    path = tmp_path / "clock.json"
    path.write_text(json.dumps({"began": "2026-01-02T03:04:05+00:00", "seconds": 100.0}))
    with Stopwatch(path, restart=False) as watch:
        assert watch.seconds >= 100
    assert json.loads(path.read_text())["began"] == "2026-01-02T03:04:05+00:00"
    assert Stopwatch(path, restart=True).seconds < 100


@pytest.mark.parametrize("content", ["", '{"began": "2026', "[]", "{}"])
def test_a_damaged_sum_begins_again(content: str, tmp_path: Path) -> None:
    path = tmp_path / "clock.json"
    path.write_text(content)
    with Stopwatch(path, restart=False) as watch:
        assert watch.seconds < 100
    assert set(json.loads(path.read_text())) == {"began", "seconds"}
