"""Measurements of a run with memory tokens: exactly c tokens of context, RECL, attention lengths."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.measure.small_runs import SmallRuns
from tests.model.tiny_model import VOCABULARY, tiny_model
from txl_lightning.config.schemas import LoggerConfig
from txl_lightning.errors import OptionError
from txl_lightning.measure.perplexity import EvaluateOptions
from txl_lightning.measure.perplexity import command as evaluate_command
from txl_lightning.measure.recl import command as recl_command
from txl_lightning.measure.recl.options import ReclOptions
from txl_lightning.measure.scoring.windows import context_losses, window_reader

NO_LOGGER = LoggerConfig(name="none")
TOKENS = np.random.default_rng(3).integers(0, VOCABULARY, 120).astype(np.uint8)


@torch.no_grad()
def test_exactly_c_tokens_are_read_in_segments_that_begin_with_the_window() -> None:
    model, positions = tiny_model(n_tokens=3, mem_len=0), np.array([60, 77, 119])
    reader = window_reader(model, trained_len=6)
    for context in (1, 6, 7, 20):
        for t, loss in zip(positions, context_losses(reader, TOKENS, positions, context), strict=True):
            window = torch.from_numpy(TOKENS[t - context : t].astype(np.int64))[None]
            changed = window.clone()
            changed[0, 0] = (changed[0, 0] + 1) % VOCABULARY
            found = []
            for tokens in (window, changed):
                memory = None
                for segment in torch.nn.functional.pad(tokens, (0, -context % 6), value=2).split(6, dim=1):
                    hidden, memory = model(segment, memory)
                last = hidden[:, (context - 1) % 6][:, None]
                found.append(float(model.losses(last, torch.tensor([[int(TOKENS[t])]]))))
            assert loss == pytest.approx(found[0], abs=1e-12)
            assert found[0] != found[1]  # the farthest token counts
    with pytest.raises(OptionError, match=r"trained_len=None: must be given for .* n_tokens=3"):
        window_reader(model)


def test_recl_is_measured_in_one_pass_and_names_the_memory(runs: SmallRuns, tmp_path: Path) -> None:
    small = {"first_context": 4, "step": 8, "max_context": 28, "n_positions": 10, "bootstrap": 5, "num_threads": 1}
    paths = [runs.checkpoint(kind) for kind in ("relative", "tokens", "tokens_states")]
    recl_command.run(ReclOptions(paths, store=str(tmp_path / "store"), logger=NO_LOGGER, **small), tmp_path)
    models = json.loads((tmp_path / "recl.json").read_text())["models"]
    assert [model["scoring"] for model in models] == ["one pass"] * 3
    assert [model["kind"].split(", ", 2)[2] for model in models] == [
        "memory 8",
        "3 memory tokens",
        "memory 8 and 3 memory tokens",
    ]


def test_attention_lengths_are_refused_and_a_sliding_window_is_not(runs: SmallRuns, tmp_path: Path) -> None:
    path = runs.checkpoint("tokens")
    with pytest.raises(OptionError, match=r"^attention_lengths=\[8\]: must be null: the context in memory tokens"):
        evaluate_command.run(EvaluateOptions(path, splits=["test"], attention_lengths=[8]), tmp_path)
    (line,) = evaluate_command.run(EvaluateOptions(path, splits=["test"]), tmp_path)
    assert "memory 0, 3 memory tokens, segments of 8, 2 streams" in line
    found = json.loads((tmp_path / "evaluation.json").read_text())["evaluation"]
    assert (found["protocol"], found["cached"]) == ("carried", False)
    evaluate_command.run(EvaluateOptions(path, splits=["test"], protocol="window", window=20, stride=4), tmp_path)
    assert json.loads((tmp_path / "evaluation.json").read_text())["evaluation"]["window"] == 20
