"""txl speed: what is timed computes what it should, the arithmetic of its times, the table and the figure."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.evaluation.kept_figures import Figures, curves
from tests.model.tiny_model import random_stream, tiny_model
from txl_lightning.evaluation import speed as command
from txl_lightning.evaluation.options import SpeedOptions
from txl_lightning.evaluation.speed import SCHEMES, TimedScheme, make_schemes, run, vanilla_of
from txl_lightning.reporting import processor


@torch.no_grad()
@pytest.mark.parametrize("extra_key", [False, True])
def test_the_schemes_compute_the_losses_of_the_text(extra_key: bool) -> None:
    model = tiny_model(mem_len=2, same_length=True, extra_key=extra_key)
    vanilla = vanilla_of(model)
    text = random_stream(1, 7)
    schemes = make_schemes(model, vanilla, 6, 4, text)
    assert tuple(schemes) == tuple(SCHEMES)
    text = text.repeat(1, 2)  # it begins again after its end
    same = model.with_lengths(mem_len=6, extra_key=False, memory_start="zeros")
    memory = None
    for start in (0, 4, 8):
        targets = text[:, start + 1 : start + 5]
        expected, memory = same.score(
            text[:, start : start + 4],
            targets,
            memory,
        )
        for name in ("hidden", "cached"):
            torch.testing.assert_close(schemes[name].read(), expected)
    windows = vanilla.with_lengths(same_length=False)
    for t in (6, 7, 8):
        window = text[:, t - 5 : t + 1]
        expected, _ = windows.score(
            window,
            text[:, t + 1 : t + 2],
        )
        torch.testing.assert_close(schemes["vanilla"].read(), expected)


def test_what_was_measured_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn: Figures
) -> None:
    monkeypatch.setattr(command, "TURN_SECONDS", 0.01)
    sizes = {
        "n_layer": 1,
        "d_model": 8,
        "n_head": 2,
        "d_inner": 8,
        "segment_len": 4,
    }
    options = SpeedOptions(
        **sizes,
        num_threads=1,
        attention_lengths=[6, 800],
        rounds=2,
    )
    lines = run(options, tmp_path)
    found = json.loads((tmp_path / "speed.json").read_text())
    assert found["machine"]["processor"] == processor()
    assert found["machine"]["threads"] == 1
    assert (found["model"]["vocab_size"], found["segment_len"]) == (204, 4)
    medians: dict[str, list[float]] = {name: [] for name in SCHEMES}
    for result, line in zip(found["results"], lines[2:4], strict=True):
        cells = line.strip("| ").replace(",", "").split(" | ")
        assert cells[0] == str(result["attention_len"])
        times = result["seconds_per_token"]
        for cell, name in zip(cells[1:4], SCHEMES, strict=True):
            medians[name].append(1000 * times[name]["median"])
            assert float(cell) == pytest.approx(medians[name][-1], rel=0.006)
        for cell, name in zip(cells[4:], ("hidden", "cached"), strict=True):
            ratio = result["ratios"][f"vanilla/{name}"]
            within_rounds = np.divide(times["vanilla"]["rounds"], times[name]["rounds"])
            assert ratio["rounds"] == within_rounds.tolist()
            assert len(within_rounds) == 2
            shown = "{median:.0f}× ({min:.0f}–{max:.0f})".format(**ratio)
            assert cell == shown
    assert (tmp_path / "speed.md").read_text() == "\n".join(lines) + "\n"
    curve_of = curves(drawn["speed.svg"].axes[0])
    for name, of_name in medians.items():
        assert curve_of[SCHEMES[name]] == ([6, 800], pytest.approx(of_name))


class Slow:
    """Model that takes two milliseconds to read a segment."""

    def score(self, tokens_1T: Any, targets_1T: Any, state: Any) -> Any:
        time.sleep(0.002)
        return targets_1T.double(), state


@pytest.mark.parametrize("segment_len", [5, 1])
def test_a_turn_is_timed_per_token(monkeypatch: pytest.MonkeyPatch, segment_len: int) -> None:
    monkeypatch.setattr(command, "TURN_SECONDS", 0.01)
    scheme = TimedScheme(Slow(), torch.arange(50)[None], segment_len)
    assert 0.002 <= scheme.turn() * segment_len < 2
    assert scheme.position >= 3 * segment_len  # two of them not timed


def test_rounds_alternate_the_first_scheme() -> None:
    order: list[str] = []

    class Noted(TimedScheme):
        def turn(self) -> float:
            order.append("ab"[self.segment_len - 1])
            return float(len(order))

    text = torch.arange(50)[None]
    schemes: dict[str, TimedScheme] = {
        "a": Noted(Slow(), text, 1),
        "b": Noted(Slow(), text, 2),
    }
    command.run_rounds({6: schemes}, 3)
    assert "".join(order) == "abbaab"
    assert schemes["a"].seconds == [1, 4, 5]
    assert schemes["b"].seconds == [2, 3, 6]
