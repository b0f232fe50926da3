"""Training: a run from its config, the LightningModule, optimizer, checkpoints, callbacks, curves and loggers."""
