"""Snapshot of a model's weights, to detect changes after projections were cached."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn


class WeightsSnapshot:
    """Addresses and version counts of a model's parameters, and the type of autocast, at one moment.

    Detected: changes in place (an optimizer step, `load_state_dict`), replaced parameters, another device or
    type, autocast switched on or off. Not detected, because torch does not count them: the step of an optimizer
    with `fused=True`, and writes through `parameter.data`.

    Args:
        model: holds the parameters.
    """

    def __init__(self, model: nn.Module) -> None:
        self._device = next(model.parameters()).device.type
        self._autocast = _autocast_dtype(self._device)
        owners = [(prefix, parameters_of(module)) for prefix, module in model.named_modules()]
        self._owners = [(prefix, parameters) for prefix, parameters in owners if parameters]
        self._identities = self._current()

    def check(self) -> None:
        """Compare the weights with those at the moment of the snapshot.

        Raises:
            RuntimeError: a parameter or autocast changed since.
        """
        autocast = _autocast_dtype(self._device)
        if autocast != self._autocast:
            raise RuntimeError(
                f"cached inference was set up with autocast={self._autocast} and is called with autocast={autocast}; "
                "make a new CachedTransformerXL"
            )
        identities = self._current()
        if identities != self._identities:
            names = [f"{prefix}.{name}" for prefix, parameters in self._owners for name in parameters]
            both = zip(names, identities, self._identities, strict=False)
            changed = [name for name, now, then in both if now != then] or ["the model"]
            raise RuntimeError(
                f"{changed[0]} changed after cached inference was set up; make a new CachedTransformerXL"
            )

    def _current(self) -> list[tuple[int, int] | None]:
        return [
            None if parameter is None else (parameter.data_ptr(), in_place_changes(parameter))
            for _, parameters in self._owners
            for parameter in parameters.values()
        ]


def parameters_of(module: nn.Module) -> Mapping[str, nn.Parameter | None]:
    """Return torch's table of a module's own parameters (`_parameters`), which shows a replaced one."""
    return module._parameters


def in_place_changes(tensor: torch.Tensor) -> int:
    """Return how often a tensor was changed in place (torch's `_version`); 0 if made in inference mode."""
    return 0 if tensor.is_inference() else tensor._version


def _autocast_dtype(device: str) -> torch.dtype | None:
    on = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if on else None
