"""Optional libraries around a training, in an environment of their own: `make test-crossings`."""

import json
from pathlib import Path

import pytest
import torch

from tests.alone import printed
from tests.docs.pages import ROOT, blocks
from tests.training.small_run import TEXT, TINY, stored_memory, tiny_config, trained
from tests.training.test_custom import Stopper
from txl_lightning.errors import Stopped
from txl_lightning.training.run import train

pytestmark = pytest.mark.filterwarnings("default")


def needs(module: str) -> None:
    pytest.importorskip(module, reason="needs make test-crossings")


def losses(metrics: dict[str, float]) -> dict[str, float]:
    return {name: metrics[name] for name in metrics if "nll" in name}


LOGGERS: dict[str, dict[str, str]] = {
    "wandb": {},
    "tensorboardX": {"_target_": "lightning.pytorch.loggers.TensorBoardLogger"},
    "mlflow": {
        "_target_": "lightning.pytorch.loggers.MLFlowLogger",
        "tracking_uri": "sqlite:///store.db",
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("module", LOGGERS)
def test_no_logger_changes_a_bit_also_after_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, devices: int
) -> None:
    needs(module)
    monkeypatch.chdir(tmp_path)
    words = (f"trainer.devices={devices}", "trainer.log_every_n_steps=3")
    config = tiny_config(
        tmp_path,
        *words,
        "logger=[csv,wandb]" if module == "wandb" else "logger=csv",
    )
    if LOGGERS[module]:
        config.logger.each[module] = LOGGERS[module]
    config.callbacks["stopper"] = {"_target_": f"{Stopper.__module__}.Stopper", "step": 7}
    with pytest.raises(Stopped):
        train(config, tmp_path / "run")
    config.callbacks = {}
    config.resume = "auto"
    plain = trained(*words) / "run"
    metrics = json.loads((plain / "metrics.json").read_text())
    assert losses(train(config, tmp_path / "run")) == losses(metrics)
    ours = stored_memory(tmp_path / "run/checkpoints/last.ckpt").states
    theirs = stored_memory(plain / "checkpoints/last.ckpt").states
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("launcher", ["joblib", "submitit_local"])
def test_other_launchers_give_the_same_table(tmp_path: Path, launcher: str) -> None:
    needs("hydra_plugins.hydra_joblib_launcher")  # with it submitit's, which the extra dev has too
    (tmp_path / "text.txt").write_text(TEXT)
    words = [*TINY, "data.path=text.txt", f"data.cache_dir={tmp_path}/cache", "memory=on,off"]
    tables = []
    for name in ("process", launcher):
        more = (f"hydra/launcher={name}", f"hydra.sweep.dir={tmp_path / name}")
        printed("-m", "txl_lightning.cli", "train", "-m", *words, *more, directory=tmp_path)
        tables.append(json.loads((tmp_path / name / "multirun.json").read_text()))
    assert [job["state"] for job in tables[0]["jobs"]] == ["finished"] * 2
    assert tables[0] == tables[1]


def test_papermill_runs_the_notebook_of_the_page(tmp_path: Path) -> None:
    needs("papermill")
    for code in blocks(ROOT / "docs/training.md", "python"):
        if "import compose, train" in code:
            break
    code = code.replace("max_steps=2", "max_steps={steps}").replace('"trainer', 'f"trainer')
    sources = {
        "parameters": "steps = 1",
        "train": code,
        "end": "assert metrics['steps'] == steps == 3",
    }
    cells = []
    for tag, source in sources.items():
        cell = {"cell_type": "code", "outputs": [], "execution_count": 1, "source": source}
        cells.append({**cell, "id": tag, "metadata": {"tags": [tag]}})
    kernel = {"name": "python3", "display_name": "Python", "language": "python"}
    notebook = {
        "cells": cells,
        "metadata": {"kernelspec": kernel},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    (tmp_path / "in.ipynb").write_text(json.dumps(notebook))
    printed("-m", "papermill", "in.ipynb", "out.ipynb", "-p", "steps", "3", directory=tmp_path)
