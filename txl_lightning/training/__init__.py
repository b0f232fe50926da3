"""Training: the LightningModule, optimiser, callbacks and loggers, and a run from its config."""
