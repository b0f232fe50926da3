"""Checkpoints of runs, models and hardware of configs, metrics of loss, and `txl convert` with its options."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING

from txl_lightning.config.schemas import Config


@dataclass
class ConvertOptions(Config):
    """Options of `txl convert`, besides those of a training run, which matter for `target_format=txl` only.

    Args:
        source: checkpoint to convert: a file, or a folder with weights and config.json. For tensorflow a folder with
            one checkpoint (NAME.index and NAME.data-…), or the path of one without `.index`.
        source_format: original, huggingface, tensorflow or txl.
        target: path of the result, which must not exist: a file for txl, otherwise a folder.
        target_format: original, huggingface or txl, another one than the source's.
        memory_start: empty or zeros, the start of the memory; null for that of the source.
        mem_len: memory length in tokens; null for that of the source. A TensorFlow model without config.json needs it.
        same_length: whether all queries attend to equally many keys; null for the source's.
        clamp_len: larger distances share one position; null for the source's.
        vocabulary: text file with the symbols in the order of their numbers, one per line, or file of JSON with the
            number of each symbol, for target_format=txl; `corpus` for the vocabulary of the corpus; null for a file
            `vocab` beside a TensorFlow model or `vocab.json` beside one of Hugging Face, else `corpus`.
    """

    source: str = MISSING
    source_format: str = MISSING
    target: str = MISSING
    target_format: str = MISSING
    memory_start: str | None = None
    mem_len: int | None = None
    same_length: bool | None = None
    clamp_len: int | None = None
    vocabulary: str | None = None
