"""examples/recall_agent.py at a tiny size; at its own size memory solves the task, and without it chance is left."""

import re
import runpy

import pytest
import torch

from tests.docs.pages import ROOT

AGENT = runpy.run_path(str(ROOT / "examples/recall_agent.py"))


def test_the_example_prints_both_rates(capsys: pytest.CaptureFixture[str]) -> None:
    AGENT["main"](["--steps", "30", "--seed", "2"])
    on, off = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"memory on: \d+% of episodes succeed \(chance: 25%\)", on)
    assert re.fullmatch(r"memory off: \d+% of episodes succeed \(chance: 25%\)", off)


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2, 3])  # the first three: none was chosen
def test_memory_solves_the_task_and_without_it_chance_is_what_is_left(seed: int) -> None:
    with torch.random.fork_rng():
        on, off = (AGENT["train"](mem_len, 5000, seed=seed) for mem_len in (12, 0))
    assert on > 0.95
    assert 0.22 < off < 0.28
