"""Options of `txl recl`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from txl_lightning.config.schemas import LoggerConfig


@dataclass
class ReclOptions:
    """Options of `txl recl`: relative effective context length of a group of models (appendix C).

    Args:
        checkpoints: checkpoints of `txl train`, all trained on one corpus.
        models: further models: txl:PATH, hf:NAME_OR_PATH (Hugging Face), py:module.function (returns a model).
        names: names of the models in tables and figures; null for the names of their run directories.
        groups: a label for each model; models with one label, such as the seeds of a model, form a group of their own;
            null for one group of all.
        context_unit: token, for models with one tokenizer; byte for any.
        begin_of_text: read the begin-of-text token of hf: models before every window, beside the context.
        dtype: weights of hf: models: float32, bfloat16 or float16.
        split: train, valid or test; null for test, or for the whole of another text (`data_path`).
        contexts: the grid: an ascending list, or doubling: first_context, 2 first_context, 4 first_context, …
            max_context; null for first_context, first_context + step, … max_context.
        first_context: smallest context in tokens.
        step: distance between contexts in tokens.
        max_context: largest context in tokens.
        n_positions: number of positions to score, in blocks spread evenly over the split.
        position_seed: moves each block to a place drawn within its part of the split; null for the end of the part.
        fractions: fractions r of hardest positions, each in (0, 1].
        threshold: relative gain below which more context no longer counts.
        bootstrap: resamples of the blocks of positions for the confidence intervals; 0 for no intervals.
        documents: respect: no window begins before the document of the token before its target, where documents are
            known; ignore: windows begin anywhere, and models that tell documents apart no longer do.
        key_gain: nats by which the loss of a key token falls from the first to the second of key_contexts.
        key_contexts: two contexts of the grid; null for the shortest and the longest.
        seed: seed of the resampling.
        clamp_len: larger distances share one position; null for the length of each run's own evaluation, or else
            the longest distance of its training; -1 for no limit.
        data_path: the runs' own files where they have moved, or others to score; needed if no checkpoint brings a
            corpus.
        store: folder that keeps losses for later groups.
        batch_tokens: context tokens in a batch; null for the default of the device.
        accelerator: cpu or gpu.
        precision: 32-true; bf16-mixed for products in bfloat16 with losses in float32; auto for the faster of both
            on this machine.
        num_threads: CPU threads; null for as many as training such a model pays for.
        logger: group: none or wandb.
    """

    checkpoints: list[str] = field(default_factory=list)
    models: list[str] = field(default_factory=list)
    names: list[str] | None = None
    groups: list[str] | None = None
    context_unit: str = "token"
    begin_of_text: bool = False
    dtype: str = "float32"
    split: str | None = None
    contexts: Any = None
    first_context: int = 16
    step: int = 16
    max_context: int = 256
    n_positions: int = 1000
    position_seed: int | None = None
    fractions: list[float] = field(default_factory=lambda: [0.1, 0.5, 1.0])
    threshold: float = 0.01
    bootstrap: int = 1000
    documents: str = "respect"
    key_gain: float = 2.0
    key_contexts: list[int] | None = None
    seed: int = 1
    clamp_len: int | None = None
    data_path: Any = None
    store: str = "~/.cache/txl_lightning/losses"
    batch_tokens: int | None = None
    accelerator: str = "cpu"
    precision: str = "32-true"
    num_threads: int | None = None
    logger: LoggerConfig = field(default_factory=LoggerConfig)
