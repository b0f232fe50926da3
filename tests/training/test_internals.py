"""Private parts of Lightning on which training relies: a change of the library fails here first."""

import signal
from pathlib import Path

import lightning as L
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector

from tests.training.small_run import tiny_config
from txl_lightning.runs.storage import read_file
from txl_lightning.training.checkpointing import discard_unfinished_batch
from txl_lightning.training.run import disable_signal_handlers, train


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


def test_callback_state_has_the_names_of_earlier_versions(tmp_path: Path) -> None:
    train(tiny_config(tmp_path, "trainer.max_steps=1", "evaluation.max_segments=1"), tmp_path / "run")
    names = {"TrainingCurves", "SkippedSteps", "RandomState", "Checkpoints"}
    assert set(read_file(tmp_path / "run/checkpoints/last.ckpt")["callbacks"]) == names
