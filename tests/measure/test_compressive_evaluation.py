"""Every command on a run with a compressed memory: works with the model itself, or refuses in one line."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.measure.small_runs import SmallRuns
from tests.model.tiny_model import VOCABULARY, random_stream, score_segments, tiny_model
from txl_lightning.config.schemas import LoggerConfig
from txl_lightning.errors import OptionError
from txl_lightning.measure.perplexity import EvaluateOptions
from txl_lightning.measure.perplexity import command as evaluate_command
from txl_lightning.measure.recl import command as recl_command
from txl_lightning.measure.recl.options import ReclOptions
from txl_lightning.measure.scoring.windows import context_losses, window_reader
from txl_lightning.model import CachedTransformerXL, generate_all
from txl_lightning.model.checkpoints import to_huggingface, to_original
from txl_lightning.model.checkpoints.formats import CheckpointError

COMPRESSIVE = {"mem_len": 4, "compressed_len": 2, "compression": "conv", "compression_rate": 2}
NO_LOGGER = LoggerConfig(name="none")
TOKENS = np.random.default_rng(3).integers(0, VOCABULARY, 120).astype(np.uint8)


def evaluated(runs: SmallRuns, directory: Path, **options: object) -> dict:
    chosen = {"splits": ["test"], **options}
    evaluate_command.run(EvaluateOptions(runs.checkpoint("compressive"), **chosen), directory)
    return json.loads((directory / "evaluation.json").read_text())


def test_another_compressed_length_changes_the_score_and_is_stated(runs: SmallRuns, tmp_path: Path) -> None:
    found = [evaluated(runs, tmp_path, compressed_len=length) for length in (0, 3, 20)]
    assert [results["evaluation"]["compressed_len"] for results in found] == [0, 3, 20]
    assert len({results["test"]["nll"] for results in found}) == 3
    with pytest.raises(OptionError, match=r"^compressed_len=3: must be null without memory=compressive"):
        evaluate_command.run(EvaluateOptions(runs.checkpoint("relative"), compressed_len=3), tmp_path)


def test_a_longer_attention_is_a_longer_compressed_memory(runs: SmallRuns, tmp_path: Path) -> None:
    ours = evaluated(runs, tmp_path, attention_lengths=[4, 8, 20])
    rows = ours["test"]["sweep"]["lengths"]
    found = [[row["evaluation"][name] for name in ("mem_len", "compressed_len", "clamp_len")] for row in rows]
    assert found == [[4, 0, -1], [8, 0, -1], [8, 12, -1]]  # training reaches a distance of 23
    init = ours["test"]["sweep"]["init"]
    assert (init["attention_length"], init["evaluation"]["compressed_len"]) == (24, 8)
    (row,) = evaluated(runs, tmp_path, attention_lengths=[40])["test"]["sweep"]["lengths"]
    assert (row["evaluation"]["compressed_len"], row["evaluation"]["clamp_len"]) == (32, 23)


def test_without_an_ordinary_memory_there_is_no_compressed_one(runs: SmallRuns, tmp_path: Path) -> None:
    for options, lengths in (({"mem_len": 0}, (0, 0)), ({"segment_len": 16}, (8, 8))):
        ours = evaluated(runs, tmp_path, **options)["evaluation"]
        assert (ours["mem_len"], ours["compressed_len"]) == lengths
    with pytest.raises(OptionError, match=r"^compressed_len=3: must be 0 with mem_len=0"):
        evaluated(runs, tmp_path, mem_len=0, compressed_len=3)


@torch.no_grad()
def test_exactly_c_tokens_are_read_in_segments_with_all_before_the_memory_compressed() -> None:
    model, positions = tiny_model(**COMPRESSIVE), np.array([60, 77, 119])
    reader = replace(window_reader(model, trained_len=6), batch_tokens=100)
    assert not reader.one_pass
    for context in (1, 6, 7, 20, 45):
        ours = context_losses(reader, TOKENS, positions, context)
        for t, loss in zip(positions, ours, strict=True):
            window = torch.from_numpy(TOKENS[t - context : t + 1].astype(np.int64))[None]
            first = (context - 1) % 6 + 1
            segments = [first] + [6] * ((context - first) // 6)
            nll, _ = score_segments(model.with_lengths(compressed_len=1000), window, segments)
            assert loss == pytest.approx(float(nll[0, -1]), abs=1e-12)
            changed = window.clone()
            changed[0, 0] = (changed[0, 0] + 1) % VOCABULARY
            other, _ = score_segments(model.with_lengths(compressed_len=1000), changed, segments)
            assert other[0, -1] != nll[0, -1]  # the farthest token counts
    with pytest.raises(OptionError, match=r"trained_len=None: must be given for .* compression=conv"):
        window_reader(model)


def test_recl_scores_it_directly(runs: SmallRuns, tmp_path: Path) -> None:
    small = {"first_context": 4, "step": 8, "max_context": 28, "n_positions": 10, "bootstrap": 5, "num_threads": 1}
    paths = [runs.checkpoint(kind) for kind in ("relative", "compressive")]
    recl_command.run(ReclOptions(paths, store=str(tmp_path / "store"), logger=NO_LOGGER, **small), tmp_path)
    models = json.loads((tmp_path / "recl.json").read_text())["models"]
    assert [model["scoring"] for model in models] == ["one pass", "direct"]
    assert "memory 8 and 8 compressed 2:1 (conv)" in models[1]["kind"]


def test_what_needs_an_ordinary_memory_is_refused() -> None:
    with pytest.raises(OptionError, match="compression=conv: cannot be cached"):
        CachedTransformerXL(tiny_model(**COMPRESSIVE))
    for export in (to_original, to_huggingface):
        with pytest.raises(CheckpointError, match="compression=conv"):
            export(tiny_model(memory_start="zeros", **COMPRESSIVE))
    with pytest.raises(RuntimeError, match="training mode"):
        generate_all(tiny_model(**COMPRESSIVE).train(), random_stream(2, 9), 1)
