"""Results for a group of models: the `recl.json` entries that follow from losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from txl_lightning.evaluation.units import errors_by_unit, loss_metrics, loss_unit
from txl_lightning.recl.effective_context import Array, Entries, Integers
from txl_lightning.recl.loss_by_context import context_curves, loss_differences

DEFINITION = {"fractions": [0.1, 0.5, 1.0], "threshold": 0.01, "bootstrap": 1000, "seed": 1}
UNKNOWN: Entries = {  # unless the model's reader says otherwise
    "kind": "",
    "scoring": "one pass",
    "limit": None,
    "sha256": None,
    "step": None,
    "trained_len": None,
    "clamp_len": None,
    "one_pass_difference": None,
    "begin_of_text": [],
    "limit_reason": None,
    "code_not_run": None,
    "not_read": [],
    "changed_text": None,
}


def group_results(
    losses: Mapping[str, Array],
    contexts: Sequence[int],
    positions: Integers,
    blocks: Integers,
    level: str,
    limits: Mapping[str, int | None] | None = None,
    begins: Integers | int = 0,
    **definition: Any,
) -> Entries:
    """Return the `recl.json` entries that follow from losses.

    Args:
        losses: l(c, t) for every model, [C, P], in nats.
        contexts: c.
        positions: t, [P].
        blocks: block of each position, [P].
        level: level of the tokens, which decides the unit: see `loss_unit`.
        limits: tokens that each model can see.
        begins: first token that each position's context may have, [P].
        definition: fractions, threshold, bootstrap and seed for `relative_effective_context_lengths`.
    """
    definition = {**DEFINITION, **definition}
    unit = loss_unit(level)
    models = []
    for name, curve in context_curves(
        losses, contexts, blocks, limits=limits, **definition
    ).items():
        values = []
        errors = []
        for nll, error in zip(curve.nll, curve.standard_error, strict=True):
            values.append(loss_metrics(nll, level)[unit])
            errors.append(errors_by_unit(error, nll, level)[unit])
        entries = {
            "name": name,
            **UNKNOWN,
            "nll": curve.nll,
            "nll_standard_error": curve.standard_error,
            unit: values,
            f"{unit}_standard_error": errors,
            "within_1_percent": curve.within_1_percent,
            "recl": {str(float(r)): asdict(length) for r, length in curve.recl.items()},
        }
        models.append(entries)
    is_cut_P = positions - contexts[-1] < begins
    return {
        "unit": unit,
        "contexts": list(contexts),
        **definition,
        "models": models,
        "differences": loss_differences(losses, blocks),
        "positions": {
            "number": len(positions),
            "blocks": len(np.unique(blocks)),
            "cut": int(is_cut_P.sum()),
        },
    }
