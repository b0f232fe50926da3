"""Training: a run from its config, the LightningModule, optimizer, checkpoints, callbacks, curves and loggers."""

from typing import Any, TypeAlias

Values: TypeAlias = dict[str, Any]
"""Values by name, as a checkpoint or a JSON file holds them."""
