"""Commands on models with rotations, ALiBi and no encoding."""

import json
from pathlib import Path

import pytest

from tests.evaluation.small_runs import SmallRuns
from txl_lightning.config.schemas import LoggerConfig
from txl_lightning.evaluation.attention.command import run as attention
from txl_lightning.evaluation.attention.options import AttentionOptions
from txl_lightning.evaluation.generate.command import run as generate
from txl_lightning.evaluation.generate.options import GenerateOptions
from txl_lightning.evaluation.recl.command import run as recl
from txl_lightning.evaluation.recl.options import ReclOptions

NO_LOGGER = LoggerConfig("none")


@pytest.mark.parametrize(("kind", "missing"), [("rope", ["b", "d"]), ("alibi", ["b"]), ("none", ["b", "d"])])
def test_attention_is_mapped_and_tokens_are_generated(
    runs: SmallRuns, tmp_path: Path, kind: str, missing: list[str]
) -> None:
    path = runs.checkpoint(kind)
    assert attention(AttentionOptions(path, mem_len=24, max_segments=4, logger=NO_LOGGER), tmp_path)
    assert json.loads((tmp_path / "attention.json").read_text())["missing_terms"] == missing
    generate(GenerateOptions(path, prompt="line 7", n_tokens=20, mem_len=24), tmp_path, write=lambda _: None)
    assert len(json.loads((tmp_path / "generation.json").read_text())["samples"]) == 1


def test_recl_scores_them_in_one_pass_without_a_clamp(runs: SmallRuns, tmp_path: Path) -> None:
    grid = {"first_context": 4, "step": 4, "max_context": 24, "n_positions": 20, "bootstrap": 0}
    paths = [runs.checkpoint(kind) for kind in ("rope", "alibi", "none")]
    assert recl(ReclOptions(paths, **grid, store=str(tmp_path / "losses"), logger=NO_LOGGER), tmp_path)
    result = json.loads((tmp_path / "recl.json").read_text())
    assert [model["clamp_len"] for model in result["models"]] == [-1, -1, -1]
