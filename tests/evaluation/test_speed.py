"""txl speed: what is timed computes what it should, the arithmetic of its times, every cell and curve."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.evaluation.kept_figures import Figures, curves
from tests.model.tiny_model import random_stream, tiny_model
from txl_lightning.evaluation import speed as command
from txl_lightning.evaluation.options import SpeedOptions
from txl_lightning.evaluation.speed import RATIOS, SCHEMES, TimedScheme, make_schemes, run, vanilla_of
from txl_lightning.reporting import processor

TINY: dict[str, Any] = {"n_layer": 1, "d_model": 8, "n_head": 2, "d_inner": 8, "segment_len": 4, "num_threads": 1}


def timed(directory: Path, **chosen: Any) -> tuple[dict[str, Any], list[str]]:
    """Return `speed.json` and the printed lines."""
    given = {**TINY, "attention_lengths": [6, 800], "rounds": 2, **chosen}
    lines = run(SpeedOptions(**given), directory)
    return json.loads((directory / "speed.json").read_text()), lines


@pytest.mark.parametrize("extra_key", [False, True])
def test_the_schemes_compute_the_losses_of_the_text(extra_key: bool) -> None:
    model, text = tiny_model(mem_len=2, same_length=True, extra_key=extra_key), random_stream(1, 7)
    vanilla = vanilla_of(model)
    made = make_schemes(model, vanilla, 6, 4, text)
    text = text.repeat(1, 2)  # it begins again after its end
    assert tuple(made) == tuple(SCHEMES)
    same = model.with_lengths(mem_len=6, extra_key=False, memory_start="zeros")
    windows = vanilla.with_lengths(same_length=False)
    with torch.no_grad():
        memory = None
        for start in (0, 4, 8):
            expected, memory = same.score(text[:, start : start + 4], text[:, start + 1 : start + 5], memory)
            for name in ("hidden", "cached"):
                torch.testing.assert_close(made[name].read(), expected)
        for t in (6, 7, 8):
            expected, _ = windows.score(text[:, t - 5 : t + 1], text[:, t + 1 : t + 2])
            torch.testing.assert_close(made["vanilla"].read(), expected)


def test_what_was_measured_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn: Figures) -> None:
    monkeypatch.setattr(command, "TURN_SECONDS", 0.01)
    found, lines = timed(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"speed.json", "speed.md", "speed.png", "speed.svg"}
    machine = {"processor": processor(), "accelerator": None, "threads": 1, "torch": torch.__version__}
    assert found.items() >= {"segment_len": 4, "rounds": 2, "machine": machine}.items()
    assert found["model"].items() >= {"vocab_size": 204, "n_layer": 1, "d_inner": 8}.items()
    assert [(r["level"], r["attention_len"]) for r in found["results"]] == [("char", 6), ("char", 800)]
    for one in found["results"]:
        assert {len(one["seconds_per_token"][name]["rounds"]) for name in SCHEMES} == {2}
    assert (tmp_path / "speed.md").read_text() == "\n".join(lines) + "\n"
    medians = {name: [1000 * one["seconds_per_token"][name]["median"] for one in found["results"]] for name in SCHEMES}
    for line, one, *times in zip(lines[2:4], found["results"], *medians.values(), strict=True):
        length, *cells = line.strip("| ").split(" | ")
        assert length == str(one["attention_len"])
        assert [float(cell.replace(",", "")) for cell in cells[:3]] == pytest.approx(times, rel=0.006)
        assert cells[3:] == ["{median:,.0f}× ({min:,.0f}–{max:,.0f})".format(**one["ratios"][n]) for n in RATIOS]
    expected = {SCHEMES[name]: ([6, 800], pytest.approx(times)) for name, times in medians.items()}
    assert curves(drawn["speed.svg"].axes[0]) == expected


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

    schemes: list[TimedScheme] = [Noted(Slow(), torch.arange(50)[None], segment_len) for segment_len in (1, 2)]
    command.run_rounds(schemes, 3)
    assert "".join(order) == "abbaab"
    assert [scheme.seconds for scheme in schemes] == [[1, 4, 5], [2, 3, 6]]


def test_ratios_are_taken_within_rounds() -> None:
    rounds = {"vanilla": [6.0, 8.0, 40.0], "hidden": [2.0, 1.0, 4.0], "cached": [1.0, 0.5, 4.0]}
    model: Any = None
    found = command.summary({name: TimedScheme(model, model, 1, seconds=of) for name, of in rounds.items()})
    expected = {"median": 8.0, "min": 6.0, "max": 40.0, "rounds": [6.0, 8.0, 40.0]}
    assert found["seconds_per_token"]["vanilla"] == expected
    assert found["ratios"]["vanilla/hidden"] == {"median": 8.0, "min": 3.0, "max": 10.0, "rounds": [3.0, 8.0, 10.0]}
