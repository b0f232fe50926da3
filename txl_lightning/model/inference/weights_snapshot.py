"""Identity of a model's weights, to refuse what was computed before they changed."""

from __future__ import annotations

import torch
from torch import nn


class WeightsSnapshot:
    """Addresses and version counts of a model's parameters, and the type of autocast, at one moment.

    Noticed: changes in place (an optimiser step, `load_state_dict`), replaced parameters, another device or
    type, autocast switched on or off. Not noticed, because torch does not count them: the step of an optimiser
    with `fused=True`, and writes through `parameter.data`.

    Args:
        model: holds the parameters.
    """

    def __init__(self, model: nn.Module) -> None:
        self._device = next(model.parameters()).device.type
        self._autocast = _autocast_dtype(self._device)
        self._parameters = [
            (f"{prefix}.{name}", module, name, (parameter.data_ptr(), in_place_changes(parameter)))
            for prefix, module in model.named_modules()
            for name, parameter in module.named_parameters(recurse=False)
        ]

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
        for path, module, name, identity in self._parameters:
            parameter = getattr(module, name)
            if (parameter.data_ptr(), in_place_changes(parameter)) != identity:
                raise RuntimeError(f"{path} changed after cached inference was set up; make a new CachedTransformerXL")


def in_place_changes(tensor: torch.Tensor) -> int:
    """Return torch's count of the changes of a tensor in place (`_version`); 0 in inference mode, which keeps none."""
    return 0 if tensor.is_inference() else tensor._version


def _autocast_dtype(device: str) -> torch.dtype | None:
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
