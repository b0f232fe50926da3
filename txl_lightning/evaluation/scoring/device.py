"""The device a measurement runs on."""

from __future__ import annotations

import os

import torch

from txl_lightning.errors import require
from txl_lightning.model.language_model import LanguageModel


def chosen_device(accelerator: str) -> torch.device:
    """Return the CPU, or the GPU of this process; never another device than the one asked for.

    Raises:
        OptionError: `accelerator` is neither `cpu` nor `gpu`, or there is no GPU.
    """
    require(accelerator in ("cpu", "gpu"), "accelerator", accelerator, "must be cpu or gpu")
    if accelerator == "cpu":
        return torch.device("cpu")
    require(torch.cuda.is_available(), "accelerator", accelerator, "no GPU is visible")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def device_of(model: LanguageModel) -> torch.device:
    """Return the device of a model's parameters; the CPU for a model without any."""
    return next((p.device for p in getattr(model, "parameters", list)()), torch.device("cpu"))
