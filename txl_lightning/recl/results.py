"""Results of a group of models: the entries of `recl.json` that follow from losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from txl_lightning.recl.effective_context import Array, Integers, relative_effective_context_lengths
from txl_lightning.recl.loss_by_context import (
    context_gains,
    loss_differences,
    mean_and_error,
)

DEFINITION = {"fractions": [0.1, 0.5, 1.0], "threshold": 0.01, "bootstrap": 1000, "seed": 1}
ONE_GROUP = "all"


def group_results(
    losses: Mapping[str, Array],
    contexts: Sequence[int],
    positions: Integers,
    blocks: Integers,
    unit: str,
    labels: Sequence[str] | None = None,
    limits: Mapping[str, int | None] | None = None,
    begins: Integers | int = 0,
    **definition: Any,
) -> dict[str, Any]:
    """Return the entries of `recl.json` that follow from losses.

    Args:
        losses: l(c, t) of every model, [C, P], in nats.
        contexts: c.
        positions: t, [P].
        blocks: block of each position, [P].
        unit: ppl, exp of a loss; or bpc or bpb, a loss in bits.
        labels: group of each model; None for one group of all.
        limits: tokens that each model can see.
        begins: first token that the context of each position may have, [P].
        definition: fractions, threshold, bootstrap and seed of
            `relative_effective_context_lengths`.
    """
    definition = {**DEFINITION, **definition}
    groups: dict[str, list[str]] = {}
    for name, label in zip(losses, labels or [ONE_GROUP] * len(losses), strict=True):
        groups.setdefault(label, []).append(name)
    models: dict[str, Any] = {name: _loss_entries(losses[name], blocks, unit) for name in losses}
    for label, names in groups.items():
        group_losses = {name: losses[name] for name in names}
        lengths = relative_effective_context_lengths(
            group_losses, contexts, limits=limits, blocks=blocks, **definition
        )
        for name in names:
            models[name].update(context_gains(losses[name], contexts, blocks))
            models[name]["group"] = label
            models[name]["recl"] = {
                str(float(r)): asdict(length) for r, length in lengths[name].items()
            }
    steps = np.unique(np.diff(contexts))
    is_cut = positions - contexts[-1] < begins
    return {
        "unit": unit,
        "contexts": list(contexts),
        "first_context": contexts[0],
        "step": int(steps[0]) if len(steps) == 1 else None,
        **definition,
        "models": [{"name": name, **model} for name, model in models.items()],
        "differences": loss_differences(losses, blocks),
        "groups": [{"name": label, "models": names} for label, names in groups.items()],
        "positions": {
            "number": len(positions),
            "blocks": len(np.unique(blocks)),
            "cut": int(is_cut.sum()),
        },
    }


def _loss_entries(losses_CP: Array, blocks: Integers, unit: str) -> dict[str, Any]:
    """Return the mean loss at each context and its standard error, in nats and in the unit of reports."""
    nll_C, error_C = mean_and_error(losses_CP, blocks)
    if unit == "ppl":
        value_C = np.exp(nll_C)
        unit_error_C = value_C * error_C
    else:
        value_C = nll_C / np.log(2)
        unit_error_C = error_C / np.log(2)
    return {
        "nll": nll_C.tolist(),
        "nll_standard_error": error_C.tolist(),
        unit: value_C.tolist(),
        f"{unit}_standard_error": unit_error_C.tolist(),
    }
