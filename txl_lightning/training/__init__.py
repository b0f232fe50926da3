"""Training: the LightningModule, optimizer, callbacks and loggers, and a run from its config."""
