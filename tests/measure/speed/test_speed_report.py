"""Table and figure of `txl speed` from results that are made up, and the arithmetic of its times."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.measure.kept_figures import Figures, bands, curves
from tests.measure.logged_panels import logged_panels
from txl_lightning.config.schemas import LoggerConfig
from txl_lightning.measure.speed import SpeedOptions, command, schemes
from txl_lightning.measure.speed.command import SCHEMES, write_report
from txl_lightning.measure.speed.schemes import TimedScheme


def result(level: str, length: int, paper: int | None) -> dict[str, Any]:
    scale = length / 1000
    times = {"vanilla": 1.5, "vanilla_fused": 0.75, "hidden": 0.012, "cached": 0.004}
    spreads = {n: {"median": scale * x, "min": scale * x / 2, "max": scale * x * 3} for n, x in times.items()}
    tokens = {"vanilla": 20, "vanilla_fused": 30, "hidden": 2560, "cached": 5120 + length}
    ratios = {"vanilla/hidden": 125.0, "vanilla/cached": 1375.0, "vanilla_fused/cached": 187.0}
    return {
        "level": level, "attention_len": length, "paper": paper,
        "seconds_per_token": {name: {**spreads[name], "tokens": tokens[name]} for name in SCHEMES},
        "ratios": {n: {"median": x + length, "min": x / 2, "max": 2 * x} for n, x in ratios.items()},
    }  # fmt: skip


def results() -> dict[str, Any]:
    sizes = {"n_layer": 4, "vanilla_n_layer": 6, "d_model": 128, "n_head": 8, "d_inner": 512, "parameters": 1234567}
    char = {**sizes, "vocab_size": 204, "cutoffs": [], "encoding": "relative", "vanilla_encoding": "absolute"}
    word = {**char, "vanilla_n_layer": 4, "vocab_size": 267735, "cutoffs": [20, 40]}
    machine = {"threads": 2, "accelerator": None, "processor": "A CPU", "torch": "2.x"}
    return {
        "results": [result("char", 800, 363), result("char", 1800, 773), result("word", 800, None)],
        "models": {"char": char, "word": word}, "segment_len": 128, "clock": "wall", "rounds": 15, "seconds": 432.1,
        "machine": machine,
    }  # fmt: skip


def test_every_cell_of_the_table(tmp_path: Path) -> None:
    with logged_panels() as panels:
        lines = write_report(results(), SpeedOptions(logger=LoggerConfig(name="wandb")), tmp_path)
    assert (tmp_path / "speed.md").read_text() == "\n".join(lines) + "\n"
    assert lines[0] == (
        "| level | attention length | vanilla, ms per token | fused | hidden states | cached | "
        "vanilla / hidden states (min–max) | vanilla / cached (min–max) | fused / cached | paper |"
    )
    assert lines[2:5] == [
        "| characters | 800 | 1,200 | 600 | 9.6 | 3.2 | 925× (62–250) | 2,175× (688–2,750) | 987× | 363× |",
        "| characters | 1,800 | 2,700 | 1,350 | 21.6 | 7.2 | 1,925× (62–250) | 3,175× (688–2,750) | 1,987× | 773× |",
        "| words | 800 | 1,200 | 600 | 9.6 | 3.2 | 925× (62–250) | 2,175× (688–2,750) | 987× | – |",
    ]
    notes = "\n".join(lines[5:])
    for words in (
        "segments of 128 tokens",
        "characters: n_layer 4, vanilla_n_layer 6, d_model 128, n_head 8, d_inner 512, parameters 1,234,567, "
        "vocab_size 204, cutoffs [], encoding relative, vanilla_encoding absolute;",
        "words: n_layer 4, vanilla_n_layer 4,",
        "Medians of 15 rounds, ratios within a round; clock=wall. Random tokens measured at each length: vanilla 20, "
        "vanilla_fused 30, hidden 2,560, cached 5,920 to 6,920. A CPU, threads: 2, torch 2.x; 432 s in all.",
    ):
        assert words in notes
    lengths, ratios, *_ = panels["speed/ratios_char"]
    assert lengths == [800, 1800]
    assert ratios == {
        "vanilla/hidden": [925, 1925], "vanilla/cached": [2175, 3175], "vanilla_fused/cached": [987, 1987],
        "paper": [363, 773],
    }  # fmt: skip
    assert set(panels["speed/ratios_word"][1]) == {"vanilla/hidden", "vanilla/cached", "vanilla_fused/cached"}
    assert panels["speed/table"][1][0][2] == "1,200"


def test_every_curve_of_the_figure(tmp_path: Path, drawn: Figures) -> None:
    write_report(results(), SpeedOptions(), tmp_path)
    char, word = drawn["speed.svg"].axes
    assert (char.get_title(), word.get_title()) == ("characters (V = 204)", "words (V = 267,735)")
    assert char.get_ylabel() == "milliseconds per token"
    assert (char.get_xlabel(), char.get_yscale()) == ("attention length (tokens)", "log")
    expected = {
        "vanilla, sliding window": [1200, 2700], "vanilla, fused attention": [600, 1350],
        "state reuse, hidden states (paper)": [9.6, 21.6], "state reuse, cached keys and values": [3.2, 7.2],
    }  # fmt: skip
    assert curves(char) == {name: ([800, 1800], pytest.approx(y)) for name, y in expected.items()}
    assert list(curves(word).values())[3] == ([800], pytest.approx([3.2]))
    for (low, high), y in zip(bands(char), expected.values(), strict=True):
        assert (low, high) == (pytest.approx(np.array(y) / 2), pytest.approx(np.array(y) * 3))
    labels = [(text.get_text(), text.xy) for text in char.texts]
    assert labels == [("2,175×", (800, pytest.approx(3.2))), ("3,175×", (1800, pytest.approx(7.2)))]
    between = [line for line in char.get_lines() if line.get_linestyle() == ":"]
    assert [line.get_ydata() for line in between] == [pytest.approx([1200, 3.2]), pytest.approx([2700, 7.2])]


class Ticking:
    """Model that takes 0.25 seconds to read a segment, by its own clock."""

    def __init__(self) -> None:
        self.time, self.read = 0.0, 0

    def score(self, tokens_1T: Any, targets_1T: Any, state: Any) -> Any:
        self.time += 0.25
        self.read += 1
        return targets_1T.double(), state


def timed(segment_len: int) -> tuple[Ticking, TimedScheme]:
    model = Ticking()
    scheme = TimedScheme(model, torch.arange(50)[None], segment_len, clock=lambda: model.time)  # type: ignore[arg-type]
    return model, scheme


def test_a_turn_is_timed_per_token(monkeypatch: pytest.MonkeyPatch) -> None:
    model, scheme = timed(5)
    scheme.segments = 3
    assert scheme.turn() == 0.25 / 5
    assert (scheme.tokens, model.read) == (15, 4)  # one is not timed
    model, scheme = timed(1)
    scheme.segments = 3
    assert (scheme.turn(), scheme.tokens, model.read) == (0.25, 3, 3)
    monkeypatch.setattr(schemes, "TURN_SECONDS", 1.0)
    for segment_len, untimed in ((5, 1), (1, 0)):
        _, scheme = timed(segment_len)
        assert scheme.warm_up() == (4 + untimed) * 0.25  # a turn of later rounds
        assert scheme.segments == 4


def test_a_line_has_times_and_ratios_within_rounds() -> None:
    rounds = {
        "vanilla": [6.0, 8.0, 40.0], "vanilla_fused": [3.0, 4.0, 9.0], "hidden": [2.0, 1.0, 4.0],
        "cached": [1.0, 0.5, 4.0],
    }  # fmt: skip
    made: Any = {name: SimpleNamespace(tokens=n, seconds=rounds[name]) for n, name in enumerate(rounds, 2)}
    found = command._summary("char", 800, made)
    assert found["seconds_per_token"]["vanilla"] == {
        "tokens": 6, "median": 8.0, "min": 6.0, "max": 40.0, "rounds": [6.0, 8.0, 40.0]
    }  # fmt: skip
    assert found["seconds_per_token"]["cached"]["tokens"] == 15
    assert found["ratios"] == {
        "vanilla/hidden": {"median": 8.0, "min": 3.0, "max": 10.0},
        "vanilla/cached": {"median": 10.0, "min": 6.0, "max": 16.0},
        "vanilla_fused/cached": {"median": 3.0, "min": 2.25, "max": 8.0},
    }
    assert (found["level"], found["attention_len"], found["paper"]) == ("char", 800, 363)
    assert command._summary("word", 800, made)["paper"] is command._summary("char", 900, made)["paper"] is None
    assert command.TABLE_9 == {800: 363, 1800: 773, 2800: 1409, 3800: 1874}  # of the paper, enwik8
