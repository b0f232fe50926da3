"""Options of `txl evaluate`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from txl_lightning.config.schemas import LoggerConfig

OWN_SPLITS = ["valid", "test"]  # scored if none are given


@dataclass
class DynamicOptions:
    """Dynamic evaluation (see `txl_lightning.beyond.dynamic_evaluation`): options `dynamic.NAME` of `txl evaluate`.

    Args:
        lr: η, the learning rate; null for static evaluation alone, or with `search`.
        decay: λ, the rate of decay towards the trained weights.
        epsilon: ε, added to the root mean square of the training gradients.
        search: choose η of `lrs` and λ of `decays` with the lowest loss on validation.
        lrs: learning rates of the search.
        decays: decays of the search.
        segments: segments of training text for the root mean square of the gradients.
    """

    lr: float | None = None
    decay: float = 0.0
    epsilon: float = 1e-4
    search: bool = False
    lrs: list[float] = field(default_factory=lambda: [3e-5, 1e-4, 3e-4, 1e-3])
    decays: list[float] = field(default_factory=lambda: [0.0, 1e-3, 1e-2])
    segments: int = 1024

    @property
    def on(self) -> bool:
        """Whether splits are evaluated dynamically too."""
        return self.search or self.lr is not None


@dataclass
class EvaluateOptions:
    """Options of `txl evaluate`: perplexity or bits per character of a checkpoint, or bits per byte of several models.

    Lengths and batch size that are null are those of the run's own evaluation.

    Args:
        checkpoint: checkpoint of `txl train` to score.
        models: models to score on one text in bits per byte instead: txl:PATH, hf:NAME_OR_FOLDER, py:module.function.
        splits: any of train, valid and test; none for valid and test, or for the whole of another text (`data_path`).
        protocol: carried, the state from segment to segment; window, recomputed for every few tokens; or both, to score
            `models` with both, those without a state in windows alone.
        batch_size: number of streams (protocol=carried); null for the run's own, 1 for dynamic evaluation.
        segment_len: tokens in a segment (protocol=carried).
        mem_len: memory length in tokens (protocol=carried).
        ext_len: extended context in tokens (protocol=carried).
        same_length: whether all queries attend to equally many keys (protocol=carried).
        clamp_len: larger distances share one position; null for the length of the run's own evaluation, or else the
            longest distance of training if you give longer lengths; -1 for no limit.
        interpolation: positions of an encoding that rotates (rope) are divided by this; 0 for as much as the farthest
            distance exceeds that of training; null for training's.
        window: tokens in a window (protocol=window); null for the attention length of training, or all tokens that an
            hf: or py: model sees.
        stride: tokens scored in each window (protocol=window); null for half the window.
        attention_lengths: attention lengths to sweep for the columns of Table 6; null for no sweep.
        select_on: split that chooses the attention length, valid or train: the sweep runs on this split only, the
            others are scored at the lengths of training and at the chosen length; null for a sweep on every split.
        sweep_tokens: tokens of that split, or of validation in `dynamic.search`, to use, from its start; null for all.
        dynamic: dynamic evaluation as well (protocol=carried): the weights learn from every segment once it is scored.
        tolerance: how much worse than the best an attention length may be to count as reaching it, in ppl or bpc;
            null for 0.005 ppl or 0.0005 bpc.
        block_len: tokens in a block, the unit of standard errors where a corpus has no sentences.
        losses: write the loss of every token to `losses_SPLIT.npz`.
        per: write a table with the loss of every line, document or token of each split; null for none.
        unit_memory: carried, for the losses of the scores above; or fresh: each line or document is scored as if it
            were alone (protocol=carried), and these are the scores above.
        table: format of the table, tsv or parquet.
        data_path: the run's own files where they have moved, or others to score, in the vocabulary of the checkpoint;
            needed if no model of `models` is a run's.
        begin_of_text: read the tokenizer's begin-of-text token of an hf: model before the text or the window.
        dtype: weights of hf: models: float32, bfloat16 or float16.
        max_segments: stop after this many segments or windows; null for as many tokens as the run's own evaluation,
            without limit if it had none or with protocol=window.
        cached: keep keys and values as memory instead of hidden states: equal losses up to rounding, faster.
        accelerator: cpu or gpu.
        precision: 32-true; bf16-mixed for products in bfloat16 with losses in float32; auto for the faster of both
            on this machine.
        num_threads: CPU threads; null for as many as training such a model pays for.
        logger: group: none or wandb.
    """

    checkpoint: str = ""
    models: list[str] = field(default_factory=list)
    splits: list[str] = field(default_factory=list)
    protocol: str = "carried"
    batch_size: int | None = None
    segment_len: int | None = None
    mem_len: int | None = None
    ext_len: int | None = None
    same_length: bool | None = None
    clamp_len: int | None = None
    interpolation: float | None = None
    window: int | None = None
    stride: int | None = None
    attention_lengths: list[int] | None = None
    select_on: str | None = None
    sweep_tokens: int | None = None
    dynamic: DynamicOptions = field(default_factory=DynamicOptions)
    tolerance: float | None = None
    block_len: int = 1000
    losses: bool = False
    per: str | None = None
    unit_memory: str = "carried"
    table: str = "tsv"
    data_path: Any = None
    begin_of_text: bool = False
    dtype: str = "float32"
    max_segments: int | None = None
    cached: bool = True
    accelerator: str = "cpu"
    precision: str = "32-true"
    num_threads: int | None = None
    logger: LoggerConfig = field(default_factory=lambda: LoggerConfig(name="none"))
