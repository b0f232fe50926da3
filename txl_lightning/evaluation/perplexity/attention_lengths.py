"""Attention lengths: the sweep of Table 6, and a length chosen on one split and scored on the others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.config.lengths import encoding_kind
from txl_lightning.config.schemas import TransformerXLModelConfig
from txl_lightning.data.corpus import Corpus
from txl_lightning.evaluation.scoring.protocols import ScoringProtocol, StateReuse
from txl_lightning.evaluation.scoring.standard_errors import TextUnits, errors_by_unit, standard_error, text_units
from txl_lightning.evaluation.scoring.token_losses import TokenLosses
from txl_lightning.runs.metrics import loss_metrics, loss_unit

HALF_A_PRINTED_DIGIT = {"ppl": 0.005, "bpc": 0.0005}


class SplitScores:
    """Losses of one split by protocol, and their entries in `evaluation.json`.

    A sweep repeats some settings: losses are remembered by settings.

    Args:
        corpus: corpus of the split.
        split: name of the split.
        block_len: tokens in a block, the unit of standard errors of a split without sentences.
    """

    def __init__(self, corpus: Corpus, split: str, block_len: int) -> None:
        self.split, self.level = split, corpus.vocabulary.level
        self.units = text_units(corpus.sentences.get(split), block_len)
        self._known: list[tuple[dict[str, Any], TokenLosses]] = []

    def losses(self, protocol: ScoringProtocol) -> TokenLosses:
        """Score the split, unless it was scored with these settings before."""
        settings = protocol.settings()
        for earlier, losses in self._known:
            if earlier == settings:
                return losses
        self._known.append((settings, protocol.losses(self.split)))
        return self._known[-1][1]

    def row(self, length: int | None, protocol: ScoringProtocol) -> dict[str, Any]:
        """Return the values of a protocol, whose attention length is `length`."""
        losses = self.losses(protocol)
        error, _ = standard_error(losses.nll, self.units.of_positions(losses.positions))
        return {
            "attention_length": length,
            **loss_metrics(losses.mean, self.level),
            "standard_error": errors_by_unit(error, losses.mean, self.level),
            "tokens": len(losses.nll),
            "seconds": round(losses.seconds, 2),
            "evaluation": protocol.settings(),
        }

    def below(self, init: ScoringProtocol, best: ScoringProtocol) -> dict[str, Any] | None:
        """Return the difference of the losses of two protocols; see `difference`."""
        return difference(self.losses(init), self.losses(best), self.units, self.level)

    def write(self, protocol: ScoringProtocol, path: Path) -> str:
        """Write the losses of a protocol, in text order, with their positions; return the name of the file."""
        losses = self.losses(protocol)
        np.savez(path, nll=losses.nll, positions=losses.positions)
        return path.name


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


@dataclass(frozen=True)
class ChosenLengths:
    """Attention lengths at which a split is scored: those of training, and those with the lowest loss on a split.

    Args:
        init: protocol at the lengths of training.
        best: protocol with the lowest loss; may be `init`.
        init_length: attention length of `init`; None for a recurrent model.
        best_length: attention length of `best`; None for a recurrent model.
    """

    init: ScoringProtocol
    best: ScoringProtocol
    init_length: int | None = None
    best_length: int | None = None


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


def sweep_lengths(sweep: Sweep, scores: SplitScores, tolerance: float | None) -> tuple[dict[str, Any], ChosenLengths]:
    """Score a split at every attention length and derive the columns of Table 6.

        init                 loss at the lengths of training
        best                 lowest loss of init and all lengths
        attention length     shortest length that is worse than the best by at most `tolerance`

    The attention length of init is `training_attention_length`.

    Args:
        sweep: protocols to score.
        scores: scores of the split.
        tolerance: in the unit of the level; None for half of the last digit printed: 0.005 ppl or 0.0005 bpc.

    Returns:
        The entry `sweep` of `evaluation.json` (see `perplexity.command`), and the lengths of init and best.
    """
    limit, unit = sweep.protocol.limit, loss_unit(scores.level)
    init_length = sweep.protocol.training_attention_length
    planned = [*sweep.at_lengths.items(), (init_length if limit is None else min(init_length, limit), sweep.init)]
    *rows, init = [scores.row(*of_length) for of_length in planned]
    tolerance = HALF_A_PRINTED_DIGIT[unit] if tolerance is None else tolerance
    number, best = min(enumerate([*rows, init]), key=lambda candidate: candidate[1][unit])
    best_length, best_protocol = planned[number]
    reaching = [r["attention_length"] for r in (*rows, init) if r[unit] <= best[unit] + tolerance]
    example = next(iter(sweep.at_lengths.values()))
    entry = {
        "knob": sweep.protocol.length_option,
        "same_length": example.settings()["same_length"] if isinstance(example, StateReuse) else False,
        "limit": limit,
        "unit": unit,
        "tolerance": tolerance,
        "init": init,
        "best": {**best, "below_init": scores.below(sweep.init, best_protocol)},
        "attention_length": min(reaching),
        "lengths": rows,
        "unclamped": [scores.row(*of_length) for of_length in sweep.unclamped.items()],
    }
    return entry, ChosenLengths(sweep.init, best_protocol, init["attention_length"], best_length)


def score_chosen(chosen: ChosenLengths, chosen_on: str, scores: SplitScores, files: Path | None) -> dict[str, Any]:
    """Score a split at both lengths.

    Args:
        chosen: the lengths.
        chosen_on: split that chose them.
        scores: scores of the split.
        files: folder for the losses of all tokens; None to write none.

    Returns:
        The entry `selected` of `evaluation.json` (see `perplexity.command`).
    """
    entry: dict[str, Any] = {
        "chosen_on": chosen_on,
        "attention_length": chosen.best_length,
        "init": scores.row(chosen.init_length, chosen.init),
        "best": scores.row(chosen.best_length, chosen.best),
        "below_init": scores.below(chosen.init, chosen.best),
    }
    if files is not None:
        name = entry["init"]["losses"] = scores.write(chosen.init, files / f"losses_{scores.split}_init.npz")
        if scores.losses(chosen.best) is not scores.losses(chosen.init):
            name = scores.write(chosen.best, files / f"losses_{scores.split}_best.npz")
        entry["best"]["losses"] = name
    return entry


def memory_at_evaluation(protocol: ScoringProtocol, length: int | None, scores: SplitScores) -> dict[str, Any] | None:
    """Score a model that was trained without memory with a memory of `length` states.

    Returns:
        The entry `memory_at_evaluation` of `evaluation.json`; None without `length`, for models without relative
        distances, and for models that were trained with memory.
    """
    config = protocol.trained.config
    if length is None or not isinstance(protocol, StateReuse) or not isinstance(config.model, TransformerXLModelConfig):
        return None
    if config.memory.mem_len or encoding_kind(config).absolute:
        return None
    return scores.row(length, protocol.with_memory(length))


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
