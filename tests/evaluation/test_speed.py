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
from txl_lightning.evaluation.speed import SCHEMES, Scheme, make_schemes, run, run_rounds
from txl_lightning.reporting import processor


@torch.no_grad()
@pytest.mark.parametrize("extra_key", [False, True])
def test_the_schemes_compute_the_losses_of_the_text(
    monkeypatch: pytest.MonkeyPatch, extra_key: bool
) -> None:
    model = tiny_model(mem_len=2, same_length=True, extra_key=extra_key)
    monkeypatch.setattr(command, "VOCABULARY", model.config.vocab_size)
    text = random_stream(1, 5)
    schemes = make_schemes(model, 6, text)
    assert tuple(schemes) == tuple(SCHEMES)
    same = model.with_lengths(mem_len=6, extra_key=False, memory_start="zeros")
    memory = None
    for _ in range(3):
        expected, memory = same.score(
            text[:, :4],
            text[:, 1:],
            memory,
        )
        for name in ("hidden", "cached"):
            torch.testing.assert_close(schemes[name].read(), expected)
    vanilla = schemes["vanilla"]
    for _ in range(3):
        window = torch.cat(
            [
                vanilla.state[:, 1:],
                text[:, :1],
            ],
            dim=1,
        )
        expected, _ = vanilla.model.model.score(
            window,
            text[:, 1:2],
        )
        torch.testing.assert_close(vanilla.read(), expected)


def test_what_was_measured_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn: Figures
) -> None:
    monkeypatch.setattr(command, "TURN_SECONDS", 0.01)
    options = SpeedOptions(
        n_layer=1,
        d_model=8,
        n_head=2,
        d_inner=8,
        segment_len=4,
        num_threads=1,
        attention_lengths=[6, 800],
        rounds=2,
    )
    lines = run(options, tmp_path)
    found = json.loads((tmp_path / "speed.json").read_text())
    assert found["machine"]["device"] == processor()
    shown = curves(drawn["speed.svg"].axes[0])
    for place, result in enumerate(found["results"]):
        times = result["seconds_per_token"]
        row = [f"{result['attention_len']}"]
        for name, title in SCHEMES.items():
            milliseconds = 1000 * times[name]["median"]
            row.append(f"{milliseconds:.3f}")
            assert shown[title][1][place] == milliseconds
        for name in ("hidden", "cached"):
            ratio = result["ratios"][f"vanilla/{name}"]
            within_rounds = np.divide(times["vanilla"]["rounds"], times[name]["rounds"])
            assert ratio["rounds"] == within_rounds.tolist()
            row.append(f"{ratio['median']:.0f}")
        assert lines[2 + place].replace(",", "") == f"| {' | '.join(row)} |"


class Slow:
    """Model that takes two milliseconds to read a segment."""

    def score(self, tokens_1T: Any, targets_1T: Any, state: Any) -> Any:
        time.sleep(0.002)
        return targets_1T.double(), state


@pytest.mark.parametrize("segment_len", [5, 1])
def test_a_turn_is_timed_per_token(monkeypatch: pytest.MonkeyPatch, segment_len: int) -> None:
    monkeypatch.setattr(command, "TURN_SECONDS", 0.01)
    scheme = Scheme(Slow(), torch.arange(segment_len + 1)[None])
    assert 0.002 <= scheme.seconds_per_token() * segment_len < 2


def test_rounds_alternate_the_first_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def noted(scheme: Scheme) -> float:
        order.append(scheme.state)
        return float(len(order))

    monkeypatch.setattr(Scheme, "seconds_per_token", noted)
    text = torch.arange(3)[None]
    model: Any = None
    schemes = {name: Scheme(model, text, name) for name in "ab"}
    assert run_rounds(schemes, 3) == {"a": [1, 4, 5], "b": [2, 3, 6]}
    assert "".join(order) == "abbaab"
