"""Comparisons between models: groups of their own, groups without one model, and differences of losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean
from typing import Any

import numpy as np

from txl_lightning.evaluation.recl.effective_context import Array, EffectiveContext, relative_effective_context_lengths
from txl_lightning.evaluation.recl.loss_by_context import NORMAL_95, mean_and_error
from txl_lightning.evaluation.scoring.windows import Integers


def lengths_in_groups(
    losses: Mapping[str, Array], contexts: Sequence[int], labels: Mapping[str, str], **definition: Any
) -> dict[str, dict[float, EffectiveContext]]:
    """Return the RECL of every model among the models with its label.

    Args:
        losses: l_i(c, t) of every model, [C, P], in nats.
        contexts: the grid c_0, c_0 + Δ, ….
        labels: label of the group of each model.
        definition: other arguments of `relative_effective_context_lengths`.
    """
    found = {}
    for group in groups_of(labels).values():
        of_group = {name: losses[name] for name in group}
        found.update(relative_effective_context_lengths(of_group, contexts, **definition))
    return found


def lengths_without_one(
    losses: Mapping[str, Array], contexts: Sequence[int], labels: Mapping[str, str], **definition: Any
) -> dict[str, dict[str, dict[float, EffectiveContext]]]:
    """Return the RECL of every model in its group without each other model, by model and model left out.

    b(c, t), the lowest loss of the group, and with it the hardest positions are those of the models that stay. The
    lengths have no intervals. Arguments as `lengths_in_groups`.
    """
    found: dict[str, dict[str, dict[float, EffectiveContext]]] = {name: {} for name in losses}
    for group in groups_of(labels).values():
        for left_out in group if len(group) > 1 else []:
            others = {name: losses[name] for name in group if name != left_out}
            lengths = relative_effective_context_lengths(others, contexts, **{**definition, "bootstrap": 0})
            for name, of_fractions in lengths.items():
                found[name][left_out] = of_fractions
    return found


def loss_differences(losses: Mapping[str, Array], blocks: Integers) -> list[dict[str, Any]]:
    """Return the difference of mean losses of every two models at each context, paired by position, in nats.

    The standard error is over blocks of the differences, which fluctuate less than the losses of either model; the
    95 % interval is 1.96 standard errors on either side.
    """
    entries = []
    for name, other in combinations(losses, 2):
        mean_C, error_C = mean_and_error(losses[name] - losses[other], blocks)
        entries.append(
            {
                "model": name,
                "minus": other,
                "nll": mean_C.tolist(),
                "nll_standard_error": error_C.tolist(),
                "low": (mean_C - NORMAL_95 * error_C).tolist(),
                "high": (mean_C + NORMAL_95 * error_C).tolist(),
            }
        )
    return entries


def group_summaries(
    lengths: Mapping[str, Mapping[float, EffectiveContext]], losses: Mapping[str, Array], labels: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return the mean, smallest and largest RECL of the models of each group, and their loss at each context.

    The standard error is over models: for seeds of one model, that of training it again.
    """
    entries = []
    for label, names in groups_of(labels).items():
        nll_IC = np.stack([losses[name].mean(axis=1) for name in names])
        error = nll_IC.std(axis=0, ddof=1) / np.sqrt(len(names)) if len(names) > 1 else None
        recl = {}
        for r in lengths[names[0]]:
            values = [lengths[name][r].value for name in names]
            at_least = any(lengths[name][r].at_least for name in names)
            recl[str(float(r))] = {"mean": fmean(values), "low": min(values), "high": max(values), "at_least": at_least}
        entries.append(
            {
                "name": label,
                "models": names,
                "recl": recl,
                "nll": nll_IC.mean(axis=0).tolist(),
                "nll_standard_error_over_models": None if error is None else error.tolist(),
            }
        )
    return entries


def groups_of(labels: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the names of each group, in the order of the first one."""
    groups: dict[str, list[str]] = {}
    for name, label in labels.items():
        groups.setdefault(label, []).append(name)
    return groups
