"""The sweep of attention lengths behind Table 6: PPL init, PPL best, and the shortest length that reaches it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from txl_lightning.evaluation.scoring.protocols import Protocol, StateReuse
from txl_lightning.evaluation.scoring.standard_errors import TextUnits, error_figures, standard_error
from txl_lightning.evaluation.scoring.token_losses import TokenLosses
from txl_lightning.runs.metrics import loss_metrics

HALF_A_PRINTED_DIGIT = {"ppl": 0.005, "bpc": 0.0005}
Measure = Callable[[Protocol], TokenLosses]


@dataclass(frozen=True)
class Sweep:
    """What will be scored.

    Args:
        protocol: as it was chosen; what the sweep does not vary stays.
        at_training_lengths: for "PPL init".
        at_lengths: by attention length, ascending.
    """

    protocol: Protocol
    at_training_lengths: Protocol
    at_lengths: dict[int, Protocol]


def plan_sweep(protocol: Protocol, lengths: list[int]) -> Sweep:
    """What to score for these attention lengths.

    Lengths beyond the protocol's limit give nothing more than the limit, which is scored in their place.

    Raises:
        OptionError: the model has no attention whose length could be varied, or a length is impossible.
    """
    limit = protocol.limit
    grid = sorted({length if limit is None else min(length, limit) for length in lengths})
    sweep = Sweep(protocol, protocol.at_training_lengths(), {n: protocol.at_attention_length(n) for n in grid})
    for planned in (*sweep.at_lengths.values(), sweep.at_training_lengths):
        planned.stated()  # refuses before anything is scored
    return sweep


def sweep_lengths(
    sweep: Sweep, measure: Measure, units: TextUnits, level: str, tolerance: float | None
) -> dict[str, Any]:
    """Score a split at every attention length and read Table 6's columns off it.

        init                 at the lengths of training
        best                 the lowest of init and all lengths
        attention length     the shortest that is worse than the best by at most `tolerance`

    Init counts with `training_attention_length`.

    Args:
        sweep: what to score.
        measure: scores a split.
        units: what standard errors are over.
        level: of the tokens: decides between bits per character and perplexity.
        tolerance: in that unit; None for half of the last digit that Table 6 prints, or of a third one of bpc.

    Returns:
        What `evaluation.json` has under `sweep` (`evaluation.command`).
    """
    limit = sweep.protocol.limit
    losses = {length: measure(protocol) for length, protocol in sweep.at_lengths.items()}
    init_losses = measure(sweep.at_training_lengths)
    unit = "ppl" if level == "word" else "bpc"
    init_length = sweep.protocol.training_attention_length
    init_row = row(init_length if limit is None else min(init_length, limit), init_losses, units, level)
    rows = [row(length, losses[length], units, level) for length in losses]
    best = min([*rows, init_row], key=lambda candidate: candidate[unit])
    best_losses = init_losses if best is init_row else losses[best["attention_length"]]
    tolerance = HALF_A_PRINTED_DIGIT[unit] if tolerance is None else tolerance
    reaching = [r["attention_length"] for r in (*rows, init_row) if r[unit] <= best[unit] + tolerance]
    example = next(iter(sweep.at_lengths.values()))
    return {
        "knob": sweep.protocol.knob,
        "same_length": example.stated()["same_length"] if isinstance(example, StateReuse) else False,
        "limit": limit,
        "unit": unit,
        "tolerance": tolerance,
        "init": {**init_row, "evaluation": sweep.at_training_lengths.stated()},
        "best": {**best, "below_init": difference(init_losses, best_losses, units, level)},
        "attention_length": min(reaching),
        "lengths": rows,
    }


def row(length: int, losses: TokenLosses, units: TextUnits, level: str) -> dict[str, Any]:
    """The figures at one attention length."""
    error, _ = standard_error(losses.nll, units.of_positions(losses.positions))
    errors = error_figures(error, losses.mean, level)
    values = loss_metrics(losses.mean, level)
    tokens = {"tokens": len(losses.nll), "seconds": round(losses.seconds, 2)}
    return {"attention_length": length, **values, "standard_error": errors, **tokens}


def difference(worse: TokenLosses, better: TokenLosses, units: TextUnits, level: str) -> dict[str, Any] | None:
    """By how much the one loss is above the other on the same tokens, and the standard error of that.

    What makes a text hard is the same for both and falls out, so this error, not those of the two, says
    whether they differ. None if they were not scored on the same tokens (`max_segments`).
    """
    if not np.array_equal(worse.positions, better.positions):
        return None
    values, others = loss_metrics(worse.mean, level), loss_metrics(better.mean, level)
    nll_P = worse.nll.astype(np.float64) - better.nll
    error, _ = standard_error(nll_P, units.of_positions(worse.positions))
    errors = error_figures(error, better.mean, level)
    return {**{name: values[name] - others[name] for name in values}, "standard_error": errors}
