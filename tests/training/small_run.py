"""A run small enough to be trained many times in a test, and one that is trained once for all tests that read it."""

import atexit
import csv
import json
import shutil
import tempfile
from collections.abc import Callable, Container
from copy import deepcopy
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from tests.fixtures import Patch
from txl_lightning.application import register
from txl_lightning.config.lengths import Lengths
from txl_lightning.config.schemas import (
    CONF,
    Config,
    DataConfig,
    FileData,
    MemoryConfig,
    OptimizerConfig,
    TrainerConfig,
    from_plain,
    typed,
)
from txl_lightning.data.streams import Batch, part_of_streams
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.evaluation.models import Model, State, model_class
from txl_lightning.evaluation.options import EvaluateOptions
from txl_lightning.evaluation.perplexity import run as evaluate
from txl_lightning.evaluation.trained import read_file
from txl_lightning.training.checkpoints import RunCheckpoint
from txl_lightning.training.module import LanguageModelModule
from txl_lightning.training.run import train

TINY = (
    "profile=smoke",
    "data=file",
    "data.level=byte",
    "data.batch_size=4",
    "data.segment_len=8",
    "evaluation.batch_size=2",
    "evaluation.max_segments=null",
    "trainer.max_steps=12",
    "trainer.val_every_n_steps=5",
    "trainer.val_max_segments=40",
    "trainer.num_threads=1",
    "trainer.progress_bar=false",
    "logger=none",
)


TEXT = ""
for i in range(60):
    TEXT += f"line {i}: the square of {i} is {i * i}\n"


def tiny_config(directory: Path, *overrides: str) -> Config:
    """Return a configuration composed as `txl train` does, on a small text in `directory`."""
    text = directory / "text.txt"
    if not text.exists():
        text.write_text(TEXT)
    config = deepcopy(_composed(overrides))
    if isinstance(config.data, FileData) and config.data.path == "TEXT":
        config.data.path = str(text)
    if config.data.cache_dir == "CACHE":
        config.data.cache_dir = str(directory / "cache")
    return config


def train_tiny(directory: Path, *overrides: str, name: str = "run") -> dict[str, Any]:
    """Train on a small text in `directory`, whose folder `name` is the run directory; return the metrics."""
    return train(
        tiny_config(directory, *overrides),
        directory / name,
    )


@cache
def trained(*overrides: str) -> Path:
    """Train once in this process, and return the folder of text and run directory, `run`; tests only read it."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    train_tiny(folder, *overrides)
    return folder


def evaluated(checkpoint: Path | str, directory: Path, **options: Any) -> dict[str, Any]:
    """Return `evaluation.json` of `txl evaluate`."""
    directory.mkdir(exist_ok=True)
    evaluate(
        EvaluateOptions(checkpoint=str(checkpoint), **options),
        directory,
    )
    return json.loads((directory / "evaluation.json").read_text())


def csv_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file."""
    return list(csv.DictReader(path.read_text().splitlines()))


def logged_rows(folder: Path) -> list[dict[str, str]]:
    """Return the rows of a CSVLogger: one file for each session, in which a later row of a step wins."""
    rows = {}
    for i in range(len(list(folder.glob("version_*")))):
        path = folder / f"version_{i}/metrics.csv"
        if not path.exists():  # killed before its first row
            continue
        for row in csv_rows(path):
            filled = {name: value for name, value in row.items() if value}
            groups = sorted({name.split("/")[0] for name in filled})
            rows[int(row["step"]), " ".join(groups)] = filled
    return [rows[key] for key in sorted(rows)]


def stored_memory(checkpoint: Path) -> State:
    """Return the memory of all streams that a checkpoint holds."""
    record = read_file(checkpoint)["txl_lightning"]
    model = model_class(from_plain(record["config"]))
    return model.state_class.from_state_dict(record["training"]["memory"]["memory"])


def bare_module(
    model: Model,
    lengths: Lengths | None = None,
    loss: str = "full",
    segment_len: int | None = None,
    optimizer: str = "adam",
    **trainer: Any,
) -> LanguageModelModule:
    """Return a module for use without a Trainer: what it asks one for is here."""
    config = Config(
        data=DataConfig(segment_len=segment_len or 1),
        memory=MemoryConfig(gradient_segments=1 if segment_len else 0),
        optimizer=OptimizerConfig(optimizer, lr=1e-3, clip_norm=1e-2),
        trainer=TrainerConfig(max_steps=10, **trainer),
        loss=loss,
    )
    module = LanguageModelModule(model, config, Vocabulary("byte"))
    module.evaluation_lengths = lengths or Lengths(1, mem_len=None)
    module.trainer = SimpleNamespace(
        precision="32-true",
        precision_plugin=None,
        strategy=None,
        global_step=0,
        testing=False,
        estimated_stepping_batches=10,
    )
    module.log = lambda *args, **options: None
    return module


def add_gradients(module: LanguageModelModule, batch: Batch, n_groups: int = 1) -> Tensor:
    """Add the gradients of a batch, as Lightning does for each group of streams; return the loss of the batch."""
    n_streams = len(batch.targets)
    module._n_streams = n_streams
    module._n_groups = n_groups
    losses = []
    for group in range(n_groups):
        first, end = part_of_streams(n_streams, group, n_groups)
        loss = module.scaled_loss(batch.streams(first, end)._replace(group=group)) / n_groups
        loss.backward()
        losses.append(loss.detach())
    return torch.stack(losses).sum()


def patch_module(
    monkeypatch: Patch, method: str, before: Callable[..., Any] | None = None, after: Any = None
) -> None:
    """Let every call of a method of the LightningModule call a function with the module before or after it."""
    original = getattr(LanguageModelModule, method)

    def patched(module, *args, **options):
        if before is not None:
            before(module)
        result = original(module, *args, **options)
        if after is not None:
            after(module)
        return result

    monkeypatch.setattr(LanguageModelModule, method, patched)


def with_losses(monkeypatch: Patch, losses: dict[int, float]) -> None:
    """Let validations after these steps have other losses for the checkpoint that keeps the best."""
    original = RunCheckpoint.on_validation_end

    def patched(checkpoint, trainer, module):
        measured = module.metrics["val/nll"]
        module.metrics["val/nll"] = losses.get(trainer.global_step, measured)
        original(checkpoint, trainer, module)
        module.metrics["val/nll"] = measured

    monkeypatch.setattr(RunCheckpoint, "on_validation_end", patched)


def poison(monkeypatch: Patch, steps: Container[int], what: str = "loss") -> None:
    """Make loss and gradients, or only gradients, not finite at some steps; with the loss the memory is spoilt too."""

    def spoil(module):
        if module.trainer.global_step + 1 not in steps:
            return
        factor = torch.nan if what == "loss" else torch.inf
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)
        if what == "loss":
            module.training_memory.value.states.fill_(torch.nan)
            module.loss = module.loss * torch.nan

    patch_module(monkeypatch, "configure_gradient_clipping", before=spoil)


@cache
def _composed(overrides: tuple[str, ...]) -> Config:
    """Return Hydra's composition; values are set in the composition of the groups, which takes a fifth of the time."""
    groups = []
    values = []
    for word in overrides:
        is_value = "." in word.split("=")[0] or word[0] in "+~"
        (values if is_value else groups).append(word)
    config = deepcopy(_groups(tuple(groups)))
    for override in OverridesParser.create().parse_overrides(values):
        OmegaConf.update(config, override.key_or_group, override.value())
    return typed(config)


@cache
def _groups(overrides: tuple[str, ...]) -> DictConfig:
    register()
    words = [*TINY, "data.path=TEXT", "data.cache_dir=CACHE", *overrides]
    if any(word.startswith("data=") and word != "data=file" for word in overrides):
        words.remove("data.level=byte")
        words.remove("data.path=TEXT")
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("train", overrides=words)
