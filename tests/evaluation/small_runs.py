"""Short runs of every kind of model, trained once, and `txl evaluate` on them."""

import json
from pathlib import Path
from typing import Any

from txl_lightning.evaluation.evaluate.command import evaluate
from txl_lightning.evaluation.evaluate.options import EvaluateOptions

KINDS = {
    "ours": ["data.level=char"],
    "absolute": ["data.level=char", "memory=off", "encoding=absolute", "loss=half", "model.ext_len=2"],
    "al_rfou": ["data.level=char", "memory=off", "encoding=al_rfou", "trainer.max_steps=1"],
    "shaw": ["data.level=word", "memory=off", "encoding=shaw", "trainer.max_steps=1"],
    "lstm": ["data.level=char", "model=lstm", "model.d_model=16"],
}


def path(trained_runs: Path, kind: str = "ours") -> str:
    """The best checkpoint of a kind."""
    return str(trained_runs / kind / "checkpoints/best.ckpt")


def result(trained_runs: Path, directory: Path, kind: str = "ours", **options: Any) -> dict[str, Any]:
    """What `evaluation.json` holds; the test split unless others are given."""
    options.setdefault("splits", ["test"])
    evaluate(EvaluateOptions(path(trained_runs, kind), block_len=20, **options), directory)
    return json.loads((directory / "evaluation.json").read_text())
