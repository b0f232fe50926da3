"""Checkpoints of other implementations, read and written."""

from txl_lightning.model.checkpoints.formats import (
    from_huggingface,
    from_original,
    from_tensorflow,
    to_huggingface,
    to_original,
)

__all__ = ["from_huggingface", "from_original", "from_tensorflow", "to_huggingface", "to_original"]
