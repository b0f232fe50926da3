"""The dashboard: the same JSON every time, and no panel of something that no command logs."""

import json
import re
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
def logged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Files that W&B gets from every command that logs, for one small character model."""
    directory = tmp_path_factory.mktemp("dashboard")
    for command in COMMANDS:
        (directory / command).mkdir()
    logger = LoggerConfig(each={"wandb": None})
    config = tiny_config(
        directory,
        "data.level=char",
        "trainer.max_steps=4",
        "trainer.val_every_n_steps=4",
        "trainer.log_every_n_steps=2",
        "context_curve.max_context=8",
        "context_curve.every_n_steps=2",
        "logger=wandb",
    )
    train(config, directory / "train")
    best = str(directory / "train/checkpoints/best.ckpt")
    swept = EvaluateOptions(best, attention_lengths=[4, 8], block_len=20, logger=logger)
    evaluate(swept, directory / "evaluate")
    recl(directory / "recl", best, names=["ours"], logger=logger, max_context=12)
    attention(AttentionOptions(best, max_segments=4, logger=logger), directory / "attention")
    timed = SpeedOptions(
        n_layer=1,
        d_model=8,
        n_head=2,
        d_inner=8,
        segment_len=4,
        attention_lengths=[6, 20],
        rounds=2,
        logger=logger,
    )
    speed(timed, directory / "speed")
    shown = {}
    for command in COMMANDS:
        (run,) = run_files(directory / command)
        shown[command] = summary(run)
    return shown


def keys_of_panels() -> set[str]:
    """Return every key that a panel shows."""
    keys: set[str] = set()
    for section in workspace("lab", "ours").sections:
        for panel in section.panels:
            for kind in ("y", "metrics", "media_keys"):
                keys.update(getattr(panel, kind, []))
            if hasattr(panel, "query"):
                keys.add(panel.query["summaryTable"]["tableKey"])
            if hasattr(panel, "with_respect_to"):
                keys.add(panel.with_respect_to)
    return keys


@pytest.mark.slow
def test_every_panel_and_column_shows_what_a_command_logs(logged: dict[str, Any]) -> None:
    there: set[str] = set()
    for shown in logged.values():
        for name, value in shown["summary"].items():
            there.add(name)
            if isinstance(value, dict):
                there.update(f"{name}.{inner}" for inner in value)
    keys = keys_of_panels()
    config = logged["train"]["config"]
    for name in PINNED:
        kind, _, key = name.partition(":")
        if kind == "summary":
            keys.add(key)
        elif kind == "config":
            first, *rest = key.replace(".value", "", 1).split(".")
            assert first in config
            assert rest == [] or rest[0] in config[first], name
    asked = {re.sub("ppl|bpb", "bpc", key) for key in keys}
    assert len(asked) >= 23
    assert asked <= there
    assert logged["recl"]["summary"]["recl/recl"]["_type"] == "html-file"
