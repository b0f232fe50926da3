"""Options for the commands that measure a trained model; read without torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from omegaconf import MISSING

from txl_lightning.config.architecture import Options
from txl_lightning.config.schemas import Config, LoggerConfig, Seed
from txl_lightning.errors import COUNT, Count, Length, Rule, Threads, at_most, one_of

TABLE_9 = (800, 1800, 2800, 3800)  # attention lengths
OWN_SPLITS = ["valid", "test"]  # scored if none are given
SPLITS = ("train", "valid", "test")
OF_SPLITS: Rule = (lambda x: {*x} <= {*SPLITS}, f"may contain only {', '.join(SPLITS)}")
LENGTHS: Rule = (lambda x: bool(x) and min(x) >= 1, "must be integers >= 1, at least one")


@dataclass(kw_only=True)
class MachineOptions(Options):
    """Options for every measurement.

    Args:
        accelerator: cpu or gpu.
        num_threads: CPU threads; null for as many as training such a model pays for, without one for torch's default.
    """

    accelerator: str = "cpu"
    num_threads: Threads | None = None


@dataclass(kw_only=True)
class PrecisionOptions(MachineOptions):
    """Options for a measurement that may use lower precision.

    Args:
        precision: 32-true; bf16-mixed for products in bfloat16 with losses in float32; auto for whichever is faster on
            this machine.
    """

    precision: Annotated[
        str,
        one_of(
            "32-true",
            "bf16-mixed",
            "auto",
        ),
    ] = "32-true"


@dataclass(kw_only=True)
class LoggedOptions(MachineOptions):
    """Options for a measurement that can be logged.

    Args:
        logger: group: none or wandb.
    """

    logger: LoggerConfig = field(default_factory=LoggerConfig)


@dataclass
class CheckpointOptions(Options):
    """Options for a measurement on one checkpoint.

    Args:
        checkpoint: checkpoint from `txl train`.
        data_path: the run's files where they have moved, or others to read, in the checkpoint's vocabulary.
    """

    checkpoint: str = MISSING
    data_path: Any = field(default=None, kw_only=True)


@dataclass(kw_only=True)
class LengthOptions(Options):
    """Lengths and streams; null ones are the run's.

    Args:
        batch_size: number of streams.
        segment_len: tokens in a segment.
        mem_len: memory length in tokens.
        clamp_len: larger distances share one position; null for the length in the run's evaluation, or else the longest
            distance in training if you give longer lengths; -1 for no limit.
        max_segments: stop after this many segments; null for as many tokens as the run's evaluation reads, without
            limit if it has none.
    """

    batch_size: Count | None = None
    segment_len: Count | None = None
    mem_len: int | None = None
    clamp_len: int | None = None
    max_segments: Count | None = None


@dataclass
class EvaluateOptions(LengthOptions, LoggedOptions, PrecisionOptions, CheckpointOptions):
    """Options for `txl evaluate`: a checkpoint's perplexity or bits per character.

    Args:
        splits: any of train, valid and test; none for valid and test, or for another text (`data_path`) as a whole.
        ext_len: extended context in tokens.
        same_length: whether all queries attend to equally many keys.
        attention_lengths: attention lengths to choose from, for Table 6: swept on validation; all splits are scored at
            training's lengths and at the best length.
        sweep_tokens: validation tokens to sweep on, from its start; null for all.
        block_len: tokens in a block, the unit for standard errors where a corpus has no sentences.
        losses: write every token's loss to `losses_SPLIT.npz`.
        continuations: table (.tsv, .jsonl) with the columns context and continuation, scored instead of splits.
        cached: keep keys and values as memory instead of hidden states: equal losses up to rounding, faster.
    """

    splits: Annotated[list[str], OF_SPLITS] = field(default_factory=list)
    ext_len: int | None = None
    same_length: bool | None = None
    attention_lengths: Annotated[list[int], LENGTHS] | None = None
    sweep_tokens: Count | None = None
    block_len: Count = 1000
    losses: bool = False
    continuations: str | None = None
    cached: bool = True


@dataclass
class AttentionOptions(LengthOptions, LoggedOptions, CheckpointOptions):
    """Options for `txl attention`: where a Transformer-XL's heads attend (Figures 5-7).

    Args:
        split: train, valid or test; null for valid, or for another text (`data_path`) as a whole.
        same_length: whether every query attends to exactly mem_len keys, as in the paper's evaluation.
    """

    split: Annotated[str, one_of(*SPLITS)] | None = None
    same_length: bool = True


@dataclass
class SpeedOptions(LoggedOptions):
    """Options for `txl speed`: time per token for a vanilla sliding window and for state reuse (Table 9).

    The model has random weights and the vocabulary of the paper's enwik8.

    Args:
        n_layer: layers.
        d_model: the model's width.
        n_head: heads per layer.
        d_inner: the feed-forward layers' width.
        segment_len: tokens per segment with state reuse.
        attention_lengths: attention lengths to time.
        rounds: number of rounds; a round times every scheme at every attention length.
        seed: seed for weights and text.
    """

    n_layer: Count = 4
    d_model: Count = 128
    n_head: Count = 8
    d_inner: Count = 512
    segment_len: Annotated[int, COUNT, at_most(16_384)] = 128
    attention_lengths: Annotated[list[int], LENGTHS] = field(default_factory=lambda: [*TABLE_9])
    rounds: Count = 15
    seed: Seed = 1


@dataclass
class GenerateOptions(PrecisionOptions, CheckpointOptions):
    """Options for `txl generate`: continue prompts, or tokens from a corpus.

    Args:
        prompt: text to continue, for token ids their names or numbers; null to continue tokens from a corpus.
        prompt_ids: token ids to continue; instead of `prompt`.
        context: how many consecutive tokens from the corpus to continue; instead of `prompt`.
        position: where the first of these tokens stands in the split.
        split: train, valid or test, for `context`; null for test, or for another text (`data_path`) as a whole.
        n_tokens: tokens to generate, at most.
        n_samples: samples to generate, one after the other.
        top_k: draw from the k most probable tokens; null for all.
        top_p: draw from the most probable tokens whose probabilities sum to top_p.
        temperature: divides the logits.
        stop: text: a sample ends with the token that completes it; null for none.
        seed: seed for the first sample; the next sample has seed + 1.
        mem_len: memory length in tokens; null for the length in the run's evaluation. A run without recurrence then
            recomputes a window as long as its training segment for every token. Distances beyond training's longest are
            clamped.
    """

    prompt: str | None = None
    prompt_ids: list[int] | None = None
    context: Count | None = None
    position: Length = 0
    split: Annotated[str, one_of(*SPLITS)] | None = None
    n_tokens: Count = 500
    n_samples: Annotated[int, COUNT, at_most(100_000)] = 1
    top_k: int | None = 40
    top_p: float = 1.0
    temperature: float = 1.0
    stop: str | None = None
    seed: Seed = 1
    mem_len: Count | None = None


@dataclass
class ConvertOptions(Config):
    """Options for `txl convert`, besides a training run's. The latter matter for `target_format=txl` only.

    Args:
        source: checkpoint to convert: a file, or a folder with weights and config.json. For tensorflow a folder with
            one checkpoint (NAME.index and NAME.data-…), or its path without `.index`.
        source_format: original, huggingface, tensorflow or txl.
        target: where to write the result: a file for txl, otherwise a folder; it must not exist.
        target_format: original, huggingface or txl, another one than the source's.
        memory_start: empty or zeros, how the memory starts; null for the source's.
        mem_len: memory length in tokens; null for the source's. A TensorFlow model without config.json needs it.
        same_length: whether all queries attend to equally many keys; null for the source's.
        clamp_len: larger distances share one position; null for the source's.
        vocabulary: for target_format=txl: text file with one symbol per line, ordered by number, or JSON file with each
            symbol's number; `corpus`, or null for source_format=original, for the corpus's vocabulary.
    """

    source: str = MISSING
    source_format: Annotated[
        str,
        one_of(
            "original",
            "huggingface",
            "tensorflow",
            "txl",
        ),
    ] = MISSING
    target: str = MISSING
    target_format: str = MISSING
    memory_start: str | None = None
    mem_len: int | None = None
    same_length: bool | None = None
    clamp_len: int | None = None
    vocabulary: str | None = None
