"""Optional libraries around a training, in an environment of their own: `make test-crossings`."""

import json
import sqlite3
from pathlib import Path

import pytest

from tests.training.small_run import tiny_config, trained
from txl_lightning.training.run import train


@pytest.mark.filterwarnings("default")
def test_mlflow_names_the_run_and_continues_it(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="needs make test-crossings")
    target = "logger._target_=lightning.pytorch.loggers.MLFlowLogger"
    config = tiny_config(tmp_path, "logger=lightning", target, "trainer.log_every_n_steps=4", "trainer.max_steps=12")
    config.logger.arguments = {"tracking_uri": f"sqlite:///{tmp_path}/mlflow.db", "experiment_name": "txl"}
    metrics = train(config, tmp_path / "run")
    expected = json.loads((trained() / "run/metrics.json").read_text())
    assert {n: metrics[n] for n in metrics if "nll" in n} == {n: expected[n] for n in expected if "nll" in n}
    config.resume, config.trainer.max_steps = "auto", 20
    train(config, tmp_path / "run")
    with sqlite3.connect(tmp_path / "mlflow.db") as store:
        ((name,),) = store.execute("select name from runs")
        steps = [step for (step,) in store.execute("select step from metrics where key = 'train/nll' order by step")]
    assert name == "relative, recurrence, full loss; memory 8, segment 8, lr 0.004, seed 1"
    assert steps == [4, 8, 12, 16, 20]
