"""Where a measurement computes."""

from __future__ import annotations

import os

import torch

from txl_lightning.errors import require
from txl_lightning.model.language_model import LanguageModel


def chosen_device(accelerator: str) -> torch.device:
    """The processor, or this process's GPU.

    Raises:
        OptionError: it is neither `cpu` nor `gpu`, or there is no GPU: a measurement never moves by itself.
    """
    require(accelerator in ("cpu", "gpu"), "accelerator", accelerator, "must be cpu or gpu")
    if accelerator == "cpu":
        return torch.device("cpu")
    require(torch.cuda.is_available(), "accelerator", accelerator, "no GPU is visible")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def device_of(model: LanguageModel) -> torch.device:
    """Where the model's parameters are; a model without any is on the processor."""
    return next((p.device for p in getattr(model, "parameters", list)()), torch.device("cpu"))
