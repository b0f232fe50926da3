"""Options for `txl recl`; read without torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from txl_lightning.config.schemas import Seed
from txl_lightning.errors import Count, Rule, one_of
from txl_lightning.evaluation.options import SPLITS, LoggedOptions, PrecisionOptions

AT_LEAST_TWO: Rule = (lambda x: x >= 2, "must be an integer >= 2 (for a standard error)")
NOT_NEGATIVE: Rule = (lambda x: x >= 0, "must be null or an integer >= 0")


@dataclass
class ReclOptions(LoggedOptions, PrecisionOptions):
    """Options for `txl recl`: relative effective context length for a group of models (appendix C).

    Args:
        checkpoints: checkpoints from `txl train`, all trained on one corpus.
        models: further models: hf:NAME_OR_PATH (Hugging Face) or py:module.function (returns a
            model).
        names: names of the models in tables and figures; null for what names them, without
            /checkpoints/best.ckpt.
        begin_of_text: whether to read the begin-of-text token of hf: models before every window,
            beside the context; null for what the tokenizer itself puts before a text.
        split: train, valid or test; null for test, or for the whole of another text (`data_path`).
        contexts: the grid, ascending; null for first_context, first_context + step, … max_context.
        first_context: smallest context in tokens.
        step: distance between contexts in tokens.
        max_context: largest context in tokens.
        n_positions: positions to score, in blocks spread evenly over the split.
        position_seed: moves each block to a place drawn within its part of the split; null for the part's end.
        fractions: fractions r of hardest positions, each in (0, 1].
        threshold: relative gain below which more context no longer counts.
        bootstrap: resamples of the blocks of positions for the confidence intervals; 0 for no
            intervals.
        documents: respect: no window begins before the document of the token before its target,
            where documents are known; ignore: windows begin anywhere, and models that tell
            documents apart no longer do.
        seed: seed of the resampling.
        data_path: the runs' own files where they have moved, or others to score; needed if no
            checkpoint brings a corpus.
    """

    checkpoints: list[str] = field(default_factory=list)
    models: list[str] = field(default_factory=list)
    names: list[str] | None = None
    begin_of_text: bool | None = None
    split: Annotated[str, one_of(*SPLITS)] | None = None
    contexts: list[int] | None = None
    first_context: Count = 16
    step: Count = 16
    max_context: int = 256
    n_positions: Annotated[int, AT_LEAST_TWO] = 1000
    position_seed: Annotated[int, NOT_NEGATIVE] | None = None
    fractions: list[float] = field(default_factory=lambda: [0.1, 0.5, 1.0])
    threshold: float = 0.01
    bootstrap: int = 1000
    documents: Annotated[str, one_of("respect", "ignore")] = "respect"
    seed: Seed = 1
    data_path: Any = None
