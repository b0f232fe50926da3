"""LightningModule, metrics, optimisation, and a run from a configuration."""
