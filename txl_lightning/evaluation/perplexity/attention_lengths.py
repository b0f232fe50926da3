"""Attention lengths: the sweep of Table 6, and a length chosen on one split and scored on the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.config.lengths import encoding_kind
from txl_lightning.config.schemas import TransformerXLModelConfig
from txl_lightning.data.corpora.corpus import Corpus
from txl_lightning.evaluation.scoring.protocols import ScoringProtocol, StateReuse
from txl_lightning.evaluation.scoring.standard_errors import TextUnits, errors_by_unit, standard_error
from txl_lightning.evaluation.scoring.token_losses import TokenLosses
from txl_lightning.runs.metrics import loss_metrics, loss_unit

HALF_A_PRINTED_DIGIT = {"ppl": 0.005, "bpc": 0.0005}
Measure = Callable[[ScoringProtocol], TokenLosses]


@dataclass(frozen=True)
class Sweep:
    """Protocols to score in a sweep.

    Args:
        protocol: chosen protocol; lengths that the sweep does not vary come from it.
        init: protocol at the lengths of training.
        at_lengths: protocols by attention length, ascending.
        unclamped: the same lengths beyond the longest trained distance, without clamp; empty unless asked for.
    """

    protocol: ScoringProtocol
    init: ScoringProtocol
    at_lengths: dict[int, ScoringProtocol]
    unclamped: dict[int, ScoringProtocol]

    def best(self, entry: dict[str, Any]) -> ScoringProtocol:
        """Return the protocol with the lowest loss in an entry of `sweep_lengths`."""
        planned = (self.init, *self.at_lengths.values())
        return next(protocol for protocol in planned if protocol.settings() == entry["best"]["evaluation"])


def plan_sweep(protocol: ScoringProtocol, lengths: list[int], unclamped: bool = False) -> Sweep:
    """Plan the sweep of these attention lengths; a length beyond the protocol's limit is replaced by the limit.

    Args:
        protocol: chosen protocol.
        lengths: attention lengths.
        unclamped: score clamped lengths without clamp too.

    Raises:
        OptionError: the model has no attention, or a length is not allowed.
    """
    limit = protocol.limit
    grid = sorted({length if limit is None else min(length, limit) for length in lengths})
    at_lengths = {n: protocol.at_attention_length(n) for n in grid}
    without = {n: of_length.unclamped() for n, of_length in at_lengths.items()} if unclamped else {}
    free = {n: of_length for n, of_length in without.items() if of_length is not None}
    sweep = Sweep(protocol, protocol.at_training_lengths(), at_lengths, free)
    for planned in (*sweep.at_lengths.values(), sweep.init):
        planned.settings()  # raises for a length that is not allowed, before anything is scored
    return sweep


def sweep_lengths(
    sweep: Sweep, measure: Measure, units: TextUnits, level: str, tolerance: float | None
) -> dict[str, Any]:
    """Score a split at every attention length and derive the columns of Table 6.

        init                 loss at the lengths of training
        best                 lowest loss of init and all lengths
        attention length     shortest length that is worse than the best by at most `tolerance`

    The attention length of init is `training_attention_length`.

    Args:
        sweep: protocols to score.
        measure: function that scores the split.
        units: units of the standard errors.
        level: level of the tokens; see `loss_unit`.
        tolerance: in that unit; None for half of the last digit printed: 0.005 ppl or 0.0005 bpc.

    Returns:
        The entry `sweep` of `evaluation.json` (see `evaluate.command`).
    """
    limit = sweep.protocol.limit
    unit = loss_unit(level)
    init_length = sweep.protocol.training_attention_length
    planned = [*sweep.at_lengths.items(), (init_length if limit is None else min(init_length, limit), sweep.init)]
    losses = [measure(protocol) for _, protocol in planned]
    *rows, init = [score_row(*of_length, nll, units, level) for of_length, nll in zip(planned, losses, strict=True)]
    tolerance = HALF_A_PRINTED_DIGIT[unit] if tolerance is None else tolerance
    number, best = min(enumerate([*rows, init]), key=lambda candidate: candidate[1][unit])
    reaching = [r["attention_length"] for r in (*rows, init) if r[unit] <= best[unit] + tolerance]
    example = next(iter(sweep.at_lengths.values()))
    return {
        "knob": sweep.protocol.length_option,
        "same_length": example.settings()["same_length"] if isinstance(example, StateReuse) else False,
        "limit": limit,
        "unit": unit,
        "tolerance": tolerance,
        "init": init,
        "best": {**best, "below_init": difference(losses[-1], losses[number], units, level)},
        "attention_length": min(reaching),
        "lengths": rows,
        "unclamped": [score_row(n, free, measure(free), units, level) for n, free in sweep.unclamped.items()],
    }


def score_row(
    length: int | None, protocol: ScoringProtocol, losses: TokenLosses, units: TextUnits, level: str
) -> dict[str, Any]:
    """Return the values of one attention length in `evaluation.json`."""
    error, _ = standard_error(losses.nll, units.of_positions(losses.positions))
    errors = errors_by_unit(error, losses.mean, level)
    values = loss_metrics(losses.mean, level)
    tokens = {"tokens": len(losses.nll), "seconds": round(losses.seconds, 2)}
    settings = {"evaluation": protocol.settings()}
    return {"attention_length": length, **values, "standard_error": errors, **tokens, **settings}


def difference(worse: TokenLosses, better: TokenLosses, units: TextUnits, level: str) -> dict[str, Any] | None:
    """Return the difference of two losses on the same tokens, and its standard error.

    The difficulty of the text is common to both losses and cancels: only the error of the difference tells whether
    they differ. None if they were scored on different tokens (`max_segments`).
    """
    if not np.array_equal(worse.positions, better.positions):
        return None
    values, others = loss_metrics(worse.mean, level), loss_metrics(better.mean, level)
    nll_P = worse.nll.astype(np.float64) - better.nll
    error, _ = standard_error(nll_P, units.of_positions(worse.positions))
    errors = errors_by_unit(error, better.mean, level)
    return {**{name: values[name] - others[name] for name in values}, "standard_error": errors}


@dataclass(frozen=True)
class Selection:
    """Attention length chosen on a split.

    Args:
        chosen_on: the split.
        init: protocol at the lengths of training.
        best: protocol with the lowest loss on the split; may be `init`.
        init_length: attention length of `init`; None for a recurrent model.
        best_length: attention length of `best`; None for a recurrent model.
    """

    chosen_on: str
    init: ScoringProtocol
    best: ScoringProtocol
    init_length: int | None
    best_length: int | None

    @classmethod
    def from_sweep(cls, split: str, sweep: Sweep, entry: dict[str, Any]) -> Selection:
        """Choose the length with the lowest loss in the split's entry of `sweep_lengths`."""
        lengths = [entry[name]["attention_length"] for name in ("init", "best")]
        return cls(split, sweep.init, sweep.best(entry), *lengths)

    @classmethod
    def without_attention(cls, split: str, protocol: ScoringProtocol) -> Selection:
        """Return the only lengths of a recurrent model."""
        init = protocol.at_training_lengths()
        return cls(split, init, init, None, None)

    def score(self, split: str, measure: Measure, units: TextUnits, level: str, files: Path | None) -> dict[str, Any]:
        """Score a split at both lengths.

        Args:
            split: name of the split.
            measure: function that scores it.
            units: units of the standard errors.
            level: level of the tokens.
            files: folder for the losses of all tokens; None to write none.

        Returns:
            The entry `selected` of `evaluation.json` (see `evaluate.command`).
        """
        entry: dict[str, Any] = {"chosen_on": self.chosen_on, "attention_length": self.best_length}
        init, best = measure(self.init), measure(self.best)
        entry["init"] = score_row(self.init_length, self.init, init, units, level)
        entry["best"] = score_row(self.best_length, self.best, best, units, level)
        entry["below_init"] = difference(init, best, units, level)
        if files is not None:
            names = {"init": f"losses_{split}_init.npz", "best": f"losses_{split}_best.npz"}
            if best is init:
                names["best"] = names["init"]
            for name, losses in (("init", init), ("best", best)):
                write_losses(files / names[name], losses)
                entry[name]["losses"] = names[name]
        return entry


def memory_at_evaluation(
    protocol: ScoringProtocol, length: int | None, measure: Callable[[ScoringProtocol], TokenLosses], *place: Any
) -> dict[str, Any] | None:
    """Score a model that was trained without memory with a memory of some states.

    Args:
        protocol: chosen protocol.
        length: number of states; None to score nothing.
        measure: function that scores the split.
        place: units of the standard errors and level of the tokens, as for `score_row`.

    Returns:
        The entry `memory_at_evaluation` of `evaluation.json`; None for models without relative distances, and for
        models that were trained with memory.
    """
    config = protocol.trained.config
    if length is None or not isinstance(protocol, StateReuse) or not isinstance(config.model, TransformerXLModelConfig):
        return None
    if config.memory.mem_len or encoding_kind(config).absolute:
        return None
    with_memory = protocol.with_memory(length)
    return score_row(length, with_memory, measure(with_memory), *place)


def first_tokens(corpus: Corpus, split: str, n: int | None) -> Corpus:
    """Return the corpus with only the first n tokens of a split, or whole sentences of at most n tokens in all."""
    tokens = corpus.splits[split]
    if n is None or n >= len(tokens):
        return corpus
    sentences = dict(corpus.sentences)
    if split in sentences:
        starts = np.asarray(sentences[split])
        kept = max(1, int(np.searchsorted(starts, n, side="right")) - 1)
        n = int(starts[kept])
        sentences[split] = starts[:kept]
    return replace(corpus, splits={**corpus.splits, split: tokens[:n]}, sentences=sentences)


def write_losses(path: Path, losses: TokenLosses) -> None:
    """Write the losses of a split, in text order, with their positions."""
    np.savez(path, nll=losses.nll, positions=losses.positions)
