"""Private parts of Lightning on which training relies: a change of the library fails here first."""

import csv
import signal
from pathlib import Path

import lightning as L
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector

from tests.training.small_run import tiny_config
from txl_lightning.runs.storage import read_file
from txl_lightning.training.build import disable_signal_handlers
from txl_lightning.training.checkpointing import discard_unfinished_batch
from txl_lightning.training.curve_files import set_csv_rows
from txl_lightning.training.run import train


def bare_trainer() -> L.Trainer:
    return L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)


def test_signal_handlers_are_registered_by_the_method_that_is_replaced() -> None:
    trainer = bare_trainer()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    assert isinstance(trainer._signal_connector, _SignalConnector)
    assert callable(_SignalConnector.register_signal_handlers)
    disable_signal_handlers(trainer)
    trainer._signal_connector.register_signal_handlers()
    assert {number: signal.getsignal(number) for number in before} == before


def test_an_unfinished_batch_is_discarded() -> None:
    trainer = bare_trainer()
    progress = trainer.fit_loop.epoch_loop.batch_progress
    for counters in (progress.total, progress.current):
        counters.ready, counters.started, counters.processed, counters.completed = 8, 8, 7, 7
    discard_unfinished_batch(trainer)
    for counters in (progress.total, progress.current):
        assert (counters.ready, counters.started, counters.processed, counters.completed) == (7, 7, 7, 7)


def test_a_csv_file_begins_with_the_rows_it_is_given(tmp_path: Path) -> None:
    logger = CSVLogger(save_dir=tmp_path, name=None, version="")
    set_csv_rows(logger, [{"step": "1", "loss": "3.5"}])
    logger.log_metrics({"loss": 2.5}, step=2)
    logger.save()
    rows = list(csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines()))
    assert [(row["step"], float(row["loss"])) for row in rows] == [("1", 3.5), ("2", 2.5)]


def test_callback_state_has_names_that_do_not_depend_on_classes(tmp_path: Path) -> None:
    train(tiny_config(tmp_path, "trainer.max_steps=1", "evaluation.max_segments=1"), tmp_path / "run")
    names = {"TrainingCurves", "SkippedSteps", "RandomState", "Checkpoints"}
    assert set(read_file(tmp_path / "run/checkpoints/last.ckpt")["callbacks"]) == names
