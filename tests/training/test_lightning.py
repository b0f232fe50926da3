"""Private parts of Lightning that the module and its callbacks use: this test fails when Lightning changes them."""

import lightning as L
import pytest

NAMES = {
    "trainer": ("_logger_connector", "_signal_connector"),
    "fit_loop": (
        "_should_accumulate",
        "_data_fetcher",
        "_combined_loader_states_to_load",
        "_load_combined_loader_states",
    ),
    "epoch_loop": ("_should_check_val_fx", "_broadcast_sigterm_tensor"),
}


@pytest.mark.parametrize("part", NAMES)
def test_lightning_has_the_private_parts_that_are_used(part):
    trainer = L.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    parts = {
        "trainer": trainer,
        "fit_loop": trainer.fit_loop,
        "epoch_loop": trainer.fit_loop.epoch_loop,
    }
    for name in NAMES[part]:
        assert hasattr(parts[part], name)
    connector = trainer._logger_connector
    assert isinstance(type(connector).should_update_logs, property)
    assert trainer.callback_metrics is connector._callback_metrics
