"""Checkpoints of runs, the models that configurations describe, and metrics of loss."""
