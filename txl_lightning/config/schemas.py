"""Typed schemas behind `conf/`: an unknown key or a value of the wrong type is an error."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import MISSING, OmegaConf

from txl_lightning.errors import require

PACKAGE = Path(__file__).parents[1]
CONF = PACKAGE / "conf" if (PACKAGE / "conf").is_dir() else PACKAGE.parent / "conf"


@dataclass
class ModelConfig:
    """Group `model`: what all models have."""

    name: str = MISSING
    n_layer: int = MISSING
    d_model: int = MISSING
    dropout: float = 0.1
    d_embed: int | None = None
    cutoffs: list[int] = field(default_factory=list)
    div_val: int = 1
    tie_projections: str = "all_but_first"


@dataclass
class TransformerXLModelConfig(ModelConfig):
    """The sizes of a Transformer-XL (see `TransformerXLConfig`)."""

    n_head: int = MISSING
    d_head: int = MISSING
    d_inner: int = MISSING
    attention_dropout: float = 0.0
    pre_norm: bool = False
    untie_biases: bool = False
    terms: str = "abcd"
    same_length: bool = False
    clamp_len: int = -1
    ext_len: int = 0


@dataclass
class RecurrentModelConfig(ModelConfig):
    """The sizes of a recurrent baseline (see `RecurrentConfig`)."""

    cell: str = MISSING
    hidden_dropout: float = 0.1
    weight_dropout: float = 0.0


@dataclass
class EncodingConfig:
    """Group `encoding`: how positions enter. `name` may be one's own (`own_encodings`).

    `table_len` null means what training needs: segment + extended context, and for shaw the memory too.
    """

    name: str = MISSING
    table_len: int | None = None


@dataclass
class MemoryConfig:
    """Group `memory`: recurrence on or off, and its length and start in training."""

    mem_len: int = MISSING
    start: str = "empty"


@dataclass
class DataConfig:
    """Group `data`: the corpus, its level, and the training streams.

    `root` is the folder of all corpora; null means the variable TXL_DATA, read where the data is loaded, so
    that a checkpoint finds its corpus on another machine too. `prefix` allows a part of a corpus where the
    whole is not there. `newlines` is enwik8's (dropped as in the paper, or kept), `seed` orders lm1b's sentences.
    """

    name: str = MISSING
    level: str = "byte"
    root: str | None = None
    prefix: bool = False
    newlines: str = "dropped"
    seed: int = 1
    path: str | None = None
    fractions: list[float] = field(default_factory=lambda: [0.9, 0.05, 0.05])
    cache_dir: str = "~/.cache/txl_lightning"
    batch_size: int = MISSING
    segment_len: int = MISSING


@dataclass
class EvaluationConfig:
    """Node `evaluation`: lengths of validation and test, which may differ from training's.

    `mem_len` null means: what training sees, mem_len + segment_len - evaluation.segment_len (0 without
    recurrence). `ext_len`, `clamp_len` and `same_length` null mean the model's own. `max_segments` stops the final
    evaluation early (null: the whole split); validation during training stops at `trainer.val_max_segments`.
    """

    batch_size: int = 10
    segment_len: int = MISSING
    mem_len: int | None = None
    ext_len: int | None = None
    same_length: bool | None = None
    clamp_len: int | None = None
    max_segments: int | None = None


@dataclass
class OptimizerConfig:
    """Group `optimizer`: Adam or AdamW, linear warm-up, cosine (or constant) afterwards, clipping."""

    name: str = MISSING
    lr: float = MISSING
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    eps: float = 1e-8
    weight_decay: float = 0.0
    schedule: str = "cosine"
    warmup_steps: int = 0
    min_lr: float = 0.0
    clip_norm: float = 0.25


@dataclass
class TrainerConfig:
    """Group `trainer`: how long, where, and how often something is reported.

    `devices` processes on each of `num_nodes` machines share the global batch; `column_chunks` goes through
    each one's columns in so many parts. `max_nonfinite_steps` skipped steps in a row end the run. `progress_file`
    writes `progress.json` about once a second.
    """

    max_steps: int = MISSING
    accelerator: str = "cpu"
    devices: int = 1
    num_nodes: int = 1
    column_chunks: int = 1
    precision: str = "32-true"
    num_threads: int | None = None
    compile: bool = False
    log_every_n_steps: int = 50
    val_every_n_steps: int | None = None
    val_max_segments: int | None = None
    max_nonfinite_steps: int = 10
    progress_bar: bool = True
    progress_file: bool = False


@dataclass
class CheckpointConfig:
    """Node `checkpoint`: how often the state is saved besides at validation and at the end.

    Without `memory` a checkpoint is smaller, and a run that goes on from it starts with an empty memory.
    """

    enabled: bool = True
    every_n_steps: int = 500
    memory: bool = True


@dataclass
class ContextCurveConfig:
    """Node `context_curve`: during training, the validation loss with exactly c tokens of context, and RECL.

    Every `every_n_steps` steps (null: never), at `n_positions` positions of the split, for c from
    `first_context` to `max_context` by `step`; RECL at `fractions` of the hardest positions.
    """

    every_n_steps: int | None = None
    first_context: int = 16
    step: int = 16
    max_context: int = 128
    n_positions: int = 500
    fractions: list[float] = field(default_factory=lambda: [0.1, 0.5, 1.0])


@dataclass
class LoggerConfig:
    """Group `logger`: where curves go.

    Of W&B's: the `group` is that of the experiment or the multirun; `run_name` null is made of the arm and its
    lengths; `tags` come beside the arm's. With `artifacts` the run ends by keeping its best weights, without the
    optimiser's state, as an artifact: offline a file beside the checkpoints that `wandb sync` uploads, online at once.
    """

    name: str = MISSING
    project: str = "txl_lightning"
    mode: str = "offline"
    group: str | None = None
    run_name: str | None = None
    tags: list[str] = field(default_factory=list)
    artifacts: bool = True


@dataclass
class Config:
    """The whole configuration of one training run."""

    model: ModelConfig = MISSING
    encoding: EncodingConfig = MISSING
    memory: MemoryConfig = MISSING
    data: DataConfig = MISSING
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    optimizer: OptimizerConfig = MISSING
    trainer: TrainerConfig = MISSING
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    context_curve: ContextCurveConfig = field(default_factory=ContextCurveConfig)
    logger: LoggerConfig = MISSING
    loss: str = "full"
    resume: str | None = None
    initial_weights: str | None = None
    seed: int = 1


def check_logger(logger: LoggerConfig, names: tuple[str, ...]) -> None:
    """Refuse a logger that a command does not have.

    Raises:
        OptionError: naming the option.
    """
    require(logger.name in names, "logger", logger.name, f"must be {' or '.join(names)}")
    modes = ("offline", "online")
    require(logger.mode in modes, "logger.mode", logger.mode, f"must be {' or '.join(modes)}")


def typed(config: Any) -> Config:
    """The dataclasses behind a composed configuration, all interpolations resolved."""
    return OmegaConf.to_object(config)  # type: ignore[return-value]


def plain(config: Any) -> dict[str, Any]:
    """Nothing but dicts, lists, numbers and strings: what checkpoints and loggers may hold."""
    if not OmegaConf.is_config(config):
        config = OmegaConf.structured(config)
    return OmegaConf.to_container(config, resolve=True)  # type: ignore[return-value]


def from_plain(values: dict[str, Any]) -> Config:
    """The inverse of `plain`, for the configuration that a checkpoint holds."""
    config = OmegaConf.structured(Config)
    config.model = RecurrentModelConfig if "cell" in values["model"] else TransformerXLModelConfig
    return typed(OmegaConf.merge(config, values))
