"""txl speed on tiny models: what is timed computes what it should, and the files agree with the times."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.measure.small_runs import SmallRuns
from tests.model.tiny_model import random_stream, tiny_model
from txl_lightning import TransformerXL, TransformerXLConfig
from txl_lightning.errors import OptionError, UserError
from txl_lightning.measure.speed import TABLE_9, SpeedOptions, schemes
from txl_lightning.measure.speed import command as speed_command
from txl_lightning.measure.speed.command import run
from txl_lightning.measure.speed.schemes import make_schemes, random_text, vanilla_of
from txl_lightning.reporting.machine import processor

TINY: dict[str, Any] = {"n_layer": 1, "d_model": 8, "n_head": 2, "d_inner": 8, "segment_len": 4, "num_threads": 1}
DEFAULTS = {name: getattr(SpeedOptions(), name) for name in TINY}


def options(**chosen: Any) -> SpeedOptions:
    return replace(SpeedOptions(**TINY), **{"levels": ["char"], "attention_lengths": [6, 800], "rounds": 2, **chosen})


@pytest.mark.parametrize("extra_key", [False, True])
def test_the_schemes_compute_the_losses_of_the_text(extra_key: bool) -> None:
    model, text = tiny_model(mem_len=2, same_length=True, extra_key=extra_key), random_stream(1, 7)
    vanilla = vanilla_of(model)
    made = make_schemes(model, vanilla, 6, 4, text)
    text = text.repeat(1, 2)  # it begins again after its end
    assert tuple(made) == ("vanilla", "vanilla_fused", "hidden", "cached")
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
            for name in ("vanilla", "vanilla_fused"):
                torch.testing.assert_close(made[name].read(), expected)


def test_the_vanilla_model_has_the_same_weights_but_no_relative_positions() -> None:
    model = tiny_model(n_layer=2)
    vanilla = vanilla_of(model, n_layer=3)
    assert (vanilla.config.n_layer, vanilla.config.encoding, vanilla.config.mem_len) == (3, "absolute", 0)
    own = dict(vanilla.named_parameters())
    assert not {name for name in own if "encoding" in name or "position" in name}
    for name, parameter in model.named_parameters():
        assert name not in own or torch.equal(own[name], parameter)


def test_words_follow_zipf() -> None:
    words = random_text(1000, 20_000, by_rank=True, seed=1)
    counts = torch.bincount(words[0], minlength=1000)
    assert counts[0] > 3 * counts[9] > 9 * counts[99]
    assert torch.equal(words, random_text(1000, 20_000, by_rank=True, seed=1))


def test_the_table_holds_what_was_measured_and_the_papers_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(schemes, "TURN_SECONDS", 0.01)
    started = time.perf_counter()
    lines = run(options(vanilla_n_layer=2), tmp_path, said.append)
    elapsed = time.perf_counter() - started
    assert {path.name for path in tmp_path.iterdir()} == {"speed.json", "speed.md", "speed.png", "speed.svg"}
    results = json.loads((tmp_path / "speed.json").read_text())
    assert 0 < results["seconds"] < elapsed + 0.01
    built = TransformerXL(TransformerXLConfig(vocab_size=204, n_layer=1, d_model=8, n_head=2, d_head=4, d_inner=8))
    assert results == {
        "checkpoint": None, "segment_len": 4, "batch_size": 1, "clock": "wall", "rounds": 2,
        "models": {"char": {
            "vocab_size": 204, "n_layer": 1, "d_model": 8, "n_head": 2, "d_head": 4, "d_inner": 8,
            "encoding": "relative", "vanilla_n_layer": 2, "vanilla_encoding": "absolute", "cutoffs": [], "div_val": 1,
            "parameters": sum(len(parameter.flatten()) for parameter in built.parameters()),
        }},
        "machine": {
            "processor": processor(), "accelerator": None, "threads": 1, "torch": torch.__version__
        },
        "results": results["results"], "seconds": results["seconds"],
    }  # fmt: skip
    expected = [("char", 6, None), ("char", 800, TABLE_9[800])]
    assert [(r["level"], r["attention_len"], r["paper"]) for r in results["results"]] == expected
    for result in results["results"]:
        for name, scheme in result["seconds_per_token"].items():
            assert len(scheme["rounds"]) == 2
            assert scheme["tokens"] % (8 if name in ("hidden", "cached") else 2) == 0
    longest = results["results"][1]["ratios"]["vanilla/cached"]["median"]
    assert (tmp_path / "speed.md").read_text() == "\n".join(lines) + "\n"
    assert f"{longest:,.0f}× (" in lines[3]
    assert lines[3].endswith("| 363× |")
    assert any("round 2 of 2" in line for line in said)


def test_words_have_the_papers_vocabulary(tmp_path: Path) -> None:
    run(options(levels=["word"], attention_lengths=[8], rounds=1), tmp_path, lambda line: None)
    results = json.loads((tmp_path / "speed.json").read_text())
    assert results["models"]["word"]["vocab_size"] == 267_735
    assert results["models"]["word"]["cutoffs"] == [20_000, 40_000, 200_000]


def test_a_trained_model_has_its_own_sizes(runs: SmallRuns, tmp_path: Path) -> None:
    chosen = replace(SpeedOptions(), attention_lengths=[20], rounds=1, segment_len=8)
    path = runs.checkpoint("relative")
    run(replace(chosen, checkpoint=path), tmp_path, lambda line: None)
    results = json.loads((tmp_path / "speed.json").read_text())
    assert results["checkpoint"] == path
    assert list(results["models"]) == ["char"]
    assert results["models"]["char"]["vocab_size"] == 256
    with pytest.raises(OptionError, match="d_model=16: must not be given with a checkpoint"):
        run(replace(chosen, checkpoint=path, d_model=16), tmp_path)
    for kind in ("lstm", "absolute", "compressive", "tokens"):
        with pytest.raises(OptionError, match=r"checkpoint=.*: is \w+; must be a Transformer-XL with an encoding"):
            run(replace(chosen, checkpoint=runs.checkpoint(kind)), tmp_path)


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"levels": ["byte"]}, r"levels=\['byte'\]: must be of char, word"),
        ({"attention_lengths": [0, 5]}, r"attention_lengths=\[0, 5\]: must be integers >= 1"),
        ({"n_head": 3}, "n_head=3: must divide d_model, which is 8"),
        ({"d_model": 7, "n_head": 1}, "d_model=7: must be an even integer"),
        ({"budget_seconds": 0.0}, "budget_seconds=0.0: must be"),
        ({"budget_seconds": 0.001, "rounds": 5}, "budget_seconds=0.001: is too little for 3 rounds"),
        ({"clock": "sun"}, "clock=sun: must be one of wall, cpu"),
        ({"clock": "cpu", "num_threads": 2}, "clock=cpu: needs num_threads=1"),
        ({"checkpoint": "/nowhere.ckpt", "levels": ["char", "word"], **DEFAULTS}, "no such file"),
    ],
)
def test_impossible_options_are_named(tmp_path: Path, chosen: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        run(options(**chosen), tmp_path, lambda line: None)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_rounds_alternate_the_first_scheme() -> None:
    order: list[str] = []

    class Turn:
        def __init__(self, name: str) -> None:
            self.name, self.seconds = name, []

        def turn(self) -> float:
            order.append(self.name)
            return float(len(order))

    timed: Any = {("char", 1): {name: Turn(name) for name in "ab"}}
    assert speed_command.run_rounds(timed, 3, float("inf"), lambda line: None) == 3
    assert "".join(order) == "abbaab"
    assert [scheme.seconds for scheme in timed["char", 1].values()] == [[1.0, 4.0, 5.0], [2.0, 3.0, 6.0]]
    said: list[str] = []
    assert speed_command.run_rounds(timed, 9, 0.0, said.append) == 3
    assert said[-1] == "budget_seconds: another round would not fit; 3 of 9 rounds measured"
