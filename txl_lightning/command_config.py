"""Typed schemas of the commands beside `txl train`, and all schemas under the names that `conf/` uses."""

from __future__ import annotations

from dataclasses import dataclass, field

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from txl_lightning.config import (
    Config,
    DataConfig,
    EncodingConfig,
    LoggerConfig,
    MemoryConfig,
    OptimizerConfig,
    RecurrentModelConfig,
    TrainerConfig,
    TransformerXLModelConfig,
)


@dataclass
class ConvertConfig(Config):
    """The configuration of `txl convert`: a training configuration, for `target_format=txl`, and the files."""

    source: str = MISSING
    source_format: str = MISSING
    target: str = MISSING
    target_format: str = MISSING
    memory_start: str | None = None


@dataclass
class EvaluateConfig:
    """The configuration of `txl evaluate`. Lengths and batch are null for what the run was evaluated with.

    `protocol` is `memory` (the state goes from segment to segment) or `sliding` (`stride` tokens are scored with
    at most `window` recomputed; null: half a window, and training's attention length). In a sweep of
    `attention_lengths`, what is worse than the best by at most `tolerance` reaches it (null: 0.005 ppl or
    0.0005 bpc). Standard errors are over blocks of `block_len` tokens where a corpus has no sentences.
    """

    checkpoint: str = MISSING
    splits: list[str] = field(default_factory=lambda: ["valid", "test"])
    protocol: str = "memory"
    batch_size: int | None = None
    segment_len: int | None = None
    mem_len: int | None = None
    ext_len: int | None = None
    same_length: bool | None = None
    clamp_len: int | None = None
    window: int | None = None
    stride: int | None = None
    attention_lengths: list[int] | None = None
    tolerance: float | None = None
    block_len: int = 1000
    losses: bool = False
    data_path: str | None = None
    max_segments: int | None = None
    cached: bool = True
    accelerator: str = "cpu"
    num_threads: int | None = None
    logger: LoggerConfig = field(default_factory=lambda: LoggerConfig(name="none"))


@dataclass
class ReclConfig:
    """The configuration of `txl recl`: a group of checkpoints, a grid of contexts, and appendix C's choices.

    `names` null means the runs' own directories. The grid is first_context, first_context + step, … up to
    max_context. `clamp_len` null means what each run was evaluated with. `store` keeps losses for later
    groups; `data_path` scores on another text of the same vocabulary.
    """

    checkpoints: list[str] = MISSING
    names: list[str] | None = None
    split: str = "test"
    first_context: int = 16
    step: int = 16
    max_context: int = 256
    n_positions: int = 1000
    fractions: list[float] = field(default_factory=lambda: [0.1, 0.5, 1.0])
    threshold: float = 0.01
    bootstrap: int = 1000
    seed: int = 1
    clamp_len: int | None = None
    data_path: str | None = None
    store: str = "~/.cache/txl_lightning/losses"
    batch_tokens: int | None = None
    accelerator: str = "cpu"
    num_threads: int | None = None
    logger: LoggerConfig = field(default_factory=LoggerConfig)


@dataclass
class AttentionConfig:
    """The configuration of `txl attention`: where the heads of a checkpoint look (Figures 5-7).

    Lengths that are null are what the run was evaluated with; with `same_length`, as in the paper's
    evaluation, every token sees `mem_len` keys. `heads` are those of Figure 6, `LAYER:HEAD` from 1; null means
    the one that looks farthest in the first, the middle and the last layer. `text_position` is Figure 6's first
    target in the split, null for the middle; `text_tokens` are its rows, null for 24 or what a segment has room for.
    """

    checkpoint: str = MISSING
    split: str = "valid"
    batch_size: int | None = None
    segment_len: int | None = None
    mem_len: int | None = None
    same_length: bool = True
    clamp_len: int | None = None
    max_segments: int | None = None
    heads: list[str] | None = None
    text_position: int | None = None
    text_tokens: int | None = None
    data_path: str | None = None
    accelerator: str = "cpu"
    num_threads: int | None = None
    logger: LoggerConfig = field(default_factory=LoggerConfig)


@dataclass
class SpeedConfig:
    """The configuration of `txl speed`: sizes of a random model, or a checkpoint, and what is timed.

    `vanilla_n_layer` null means as many layers as the other side. There are `rounds` rounds, or as many as
    fit into `budget_seconds`. `clock=cpu` counts the processor's time of one thread, for a machine that has
    other work too.
    """

    checkpoint: str | None = None
    levels: list[str] = field(default_factory=lambda: ["char", "word"])
    n_layer: int = 4
    d_model: int = 128
    n_head: int = 8
    d_inner: int = 512
    vanilla_n_layer: int | None = None
    segment_len: int = 128
    attention_lengths: list[int] = field(default_factory=lambda: [800, 1800, 2800, 3800])
    rounds: int = 15
    budget_seconds: float = 480.0
    clock: str = "wall"
    seed: int = 1
    accelerator: str = "cpu"
    num_threads: int | None = None
    logger: LoggerConfig = field(default_factory=lambda: LoggerConfig(name="none"))


@dataclass
class GenerateConfig:
    """The configuration of `txl generate`: what to continue, and how tokens are drawn.

    Either `prompt`, or `context` consecutive tokens of `split` from `position` on (null: drawn with `seed`).
    `mem_len` null means the memory that the run was evaluated with, and for a run without recurrence a window
    of its training segment that is computed anew for every token. `top_k` null draws from all tokens.
    """

    checkpoint: str = MISSING
    prompt: str | None = None
    context: int | None = None
    position: int | None = None
    split: str = "test"
    n_tokens: int = 500
    n_samples: int = 1
    top_k: int | None = 40
    top_p: float = 1.0
    temperature: float = 1.0
    seed: int = 1
    mem_len: int | None = None
    data_path: str | None = None
    accelerator: str = "cpu"
    num_threads: int | None = None


def register_schemas() -> None:
    """Make the schemas known to Hydra under the names that `conf/` uses."""
    store = ConfigStore.instance()
    store.store(name="train_schema", node=Config)
    store.store(name="evaluate_schema", node=EvaluateConfig)
    store.store(name="convert_schema", node=ConvertConfig)
    store.store(name="recl_schema", node=ReclConfig)
    store.store(name="attention_schema", node=AttentionConfig)
    store.store(name="speed_schema", node=SpeedConfig)
    store.store(name="generate_schema", node=GenerateConfig)
    store.store(group="model", name="recurrent_schema", node=RecurrentModelConfig)
    for group, node in {
        "model": TransformerXLModelConfig,
        "encoding": EncodingConfig,
        "memory": MemoryConfig,
        "data": DataConfig,
        "optimizer": OptimizerConfig,
        "trainer": TrainerConfig,
        "logger": LoggerConfig,
    }.items():
        store.store(group=group, name="schema", node=node)
