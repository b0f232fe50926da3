"""The dashboard: the same JSON every time, and no panel of something that no command logs."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sweeps.dashboard import PINNED, as_json, workspace
from tests.recl.small_recl import recl
from tests.training.small_run import tiny_config
from tests.wandb_files import run_files, summary
from txl_lightning.config.schemas import LoggerConfig
from txl_lightning.evaluation.attention import run as attention
from txl_lightning.evaluation.options import AttentionOptions, EvaluateOptions, SpeedOptions
from txl_lightning.evaluation.perplexity import run as evaluate
from txl_lightning.evaluation.speed import run as speed
from txl_lightning.training.run import train

COMMANDS = ("train", "evaluate", "recl", "speed", "attention")


def test_the_json_has_the_sections_and_is_the_same_every_time() -> None:
    """Fails when a version of wandb-workspaces changes the internals `_internal_runset_id`, `_id` or `_to_model`."""
    written = as_json("lab", "txl_lightning")
    assert written == as_json("lab", "txl_lightning")
    found = json.loads(written)
    assert (found["entity"], found["project"]) == ("lab", "txl_lightning")
    sections = found["spec"]["section"]["panelBankConfig"]["sections"]
    names = [
        "Ablation",
        "Learning curves by arm",
        "RECL and context",
        "Speed",
        "Attention",
        "Sweeps",
    ]
    assert [section["name"] for section in sections] == names
    assert all(section["panels"] for section in sections)


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The offline run of every command that logs, by command, on one small model of characters."""
    directory = tmp_path_factory.mktemp("dashboard")
    logger = LoggerConfig(each={"wandb": None})
    contexts = ("context_curve.max_context=8", "context_curve.every_n_steps=2")
    steps = (
        "trainer.max_steps=4",
        "trainer.val_every_n_steps=4",
        "trainer.log_every_n_steps=2",
        "logger=wandb",
    )
    train(tiny_config(directory, *steps, "data.level=char", *contexts), directory / "train")
    best = str(directory / "train/checkpoints/best.ckpt")
    for command in COMMANDS[1:]:
        (directory / command).mkdir()
    evaluate(
        EvaluateOptions(best, attention_lengths=[4, 8], block_len=20, logger=logger),
        directory / "evaluate",
    )
    recl(directory / "recl", best, names=["ours"], logger=logger, max_context=12)
    attention(AttentionOptions(best, max_segments=4, logger=logger), directory / "attention")
    sizes: dict[str, Any] = {"n_layer": 1, "d_model": 8, "n_head": 2, "d_inner": 8}
    timed = SpeedOptions(**sizes, segment_len=4, attention_lengths=[6, 20], rounds=2, logger=logger)
    speed(timed, directory / "speed")
    runs = {}
    for command in COMMANDS:
        (runs[command],) = run_files(directory / command)
    return runs


def keys_of_panels() -> Iterator[str]:
    """Every key that a panel or a column shows."""
    for section in workspace("lab", "ours").sections:
        for panel in section.panels:
            yield from getattr(panel, "y", [])
            yield from getattr(panel, "metrics", [])
            yield from getattr(panel, "media_keys", [])
            yield from [panel.query["summaryTable"]["tableKey"]] if hasattr(panel, "query") else []
            yield from [panel.with_respect_to] if hasattr(panel, "with_respect_to") else []


@pytest.mark.slow
def test_every_panel_and_column_shows_what_a_command_logs(logged: dict[str, Path]) -> None:
    there: set[str] = set()
    for run in logged.values():
        for name, value in summary(run)["summary"].items():
            there |= (
                {name, *(f"{name}.{inner}" for inner in value)}
                if isinstance(value, dict)
                else {name}
            )
    columns = [name.removeprefix("summary:") for name in PINNED if name.startswith("summary:")]
    asked = {re.sub("ppl|bpb", "bpc", key) for key in (*keys_of_panels(), *columns)}
    assert len(asked) >= 23
    assert asked <= there
    assert summary(logged["recl"])["summary"]["recl/recl"]["_type"] == "html-file"
    config = summary(logged["train"])["config"]
    for name in PINNED:
        if name.startswith("config:"):
            first, *rest = name.removeprefix("config:").replace(".value", "", 1).split(".")
            assert rest == [] or rest[0] in config[first], name
            assert first in config
