"""Attention length chosen on one split and scored on the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.config.lengths import encoding_kind
from txl_lightning.config.schemas import TransformerXLModelConfig
from txl_lightning.data.corpus import Corpus
from txl_lightning.evaluation.evaluate.attention_lengths import Measure, Sweep, difference, score_row
from txl_lightning.evaluation.scoring.protocols import ScoringProtocol, StateReuse
from txl_lightning.evaluation.scoring.standard_errors import TextUnits
from txl_lightning.evaluation.scoring.token_losses import TokenLosses


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
