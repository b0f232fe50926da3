"""Results for a group of models: the `recl.json` entries that follow from losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from txl_lightning.recl.effective_context import (
    Array,
    Entries,
    Integers,
    relative_effective_context_lengths,
)
from txl_lightning.recl.loss_by_context import loss_differences, mean_and_error, within_1_percent

DEFINITION = {"fractions": [0.1, 0.5, 1.0], "threshold": 0.01, "bootstrap": 1000, "seed": 1}
ONE_GROUP = "all"
UNKNOWN: Entries = {  # unless the model's reader says otherwise
    "kind": "",
    "scoring": "one pass",
    "limit": None,
    "sha256": None,
    "step": None,
    "tokens_trained": None,
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
    unit: str,
    labels: Sequence[str] | None = None,
    limits: Mapping[str, int | None] | None = None,
    begins: Integers | int = 0,
    **definition: Any,
) -> Entries:
    """Return the `recl.json` entries that follow from losses.

    Args:
        losses: l(c, t) for every model, [C, P], in nats.
        contexts: c.
        positions: t, [P].
        blocks: block index per position, [P].
        unit: ppl, exp(loss); or bpc or bpb, a loss in bits.
        labels: each model's group; None for one group with all.
        limits: tokens that each model can see.
        begins: first token that each position's context may have, [P].
        definition: fractions, threshold, bootstrap and seed for `relative_effective_context_lengths`.
    """
    definition = {**DEFINITION, **definition}
    if labels is None:
        labels = [ONE_GROUP] * len(losses)
    groups: dict[str, list[str]] = {}
    models: Entries = {}
    for name, label in zip(losses, labels, strict=True):
        groups.setdefault(label, []).append(name)
        entries = _loss_entries(losses[name], contexts, blocks, unit)
        models[name] = {"name": name, "group": label, **UNKNOWN, **entries}
    for names in groups.values():
        group_losses = {name: losses[name] for name in names}
        lengths = relative_effective_context_lengths(
            group_losses,
            contexts,
            limits=limits,
            blocks=blocks,
            **definition,
        )
        for name in names:
            by_fraction = {str(float(r)): asdict(length) for r, length in lengths[name].items()}
            models[name]["recl"] = by_fraction
    steps = np.unique(np.diff(contexts)).tolist()
    is_cut_P = positions - contexts[-1] < begins
    return {
        "unit": unit,
        "contexts": list(contexts),
        "first_context": contexts[0],
        "step": steps[0] if len(steps) == 1 else None,
        **definition,
        "models": list(models.values()),
        "differences": loss_differences(losses, blocks),
        "groups": [{"name": label, "models": names} for label, names in groups.items()],
        "positions": {
            "number": len(positions),
            "blocks": len(np.unique(blocks)),
            "cut": int(is_cut_P.sum()),
        },
    }


def _loss_entries(
    losses_CP: Array,
    contexts: Sequence[int],
    blocks: Integers,
    unit: str,
) -> Entries:
    """Return the mean loss at each context and its standard error, in nats and in the reports' unit."""
    nll_C, error_C = mean_and_error(losses_CP, blocks)
    value_C = nll_C / np.log(2)
    scale_C = np.full(len(nll_C), 1 / np.log(2))
    if unit == "ppl":
        value_C = np.exp(nll_C)
        scale_C = value_C
    return {
        "nll": nll_C.tolist(),
        "nll_standard_error": error_C.tolist(),
        unit: value_C.tolist(),
        f"{unit}_standard_error": (scale_C * error_C).tolist(),
        "within_1_percent": within_1_percent(nll_C, contexts),
    }
