"""Typed schemas behind `conf/`: an unknown key or a value of the wrong type is an error."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, OmegaConf

from txl_lightning.errors import OptionError
from txl_lightning.model.config import TransformerXLConfig

PACKAGE = Path(__file__).parent
CONF = PACKAGE / "conf" if (PACKAGE / "conf").is_dir() else PACKAGE.parent / "conf"


@dataclass
class ModelConfig:
    """Group `model`: the sizes (see `TransformerXLConfig`)."""

    name: str = MISSING
    n_layer: int = MISSING
    d_model: int = MISSING
    n_head: int = MISSING
    d_head: int = MISSING
    d_inner: int = MISSING
    dropout: float = 0.1
    attention_dropout: float = 0.0
    pre_norm: bool = False
    untie_biases: bool = False
    same_length: bool = False
    clamp_len: int = -1
    ext_len: int = 0


@dataclass
class EncodingConfig:
    """Group `encoding`: how positions enter."""

    name: str = MISSING


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
    recurrence). `clamp_len` and `same_length` null mean the model's own. `max_segments` stops the final
    evaluation early (null: the whole split); validation during training stops at `trainer.val_max_segments`.
    """

    batch_size: int = 10
    segment_len: int = MISSING
    mem_len: int | None = None
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
    """Group `trainer`: how long, where, and how often something is reported."""

    max_steps: int = MISSING
    accelerator: str = "cpu"
    devices: int = 1
    precision: str = "32-true"
    num_threads: int | None = None
    compile: bool = False
    log_every_n_steps: int = 50
    val_every_n_steps: int | None = None
    val_max_segments: int | None = None
    progress_bar: bool = True


@dataclass
class CheckpointConfig:
    """Node `checkpoint`: what is kept in the run directory besides the best and the last state."""

    enabled: bool = True
    every_n_steps: int = 500


@dataclass
class LoggerConfig:
    """Group `logger`: where curves go."""

    name: str = MISSING
    project: str = "txl_lightning"
    mode: str = "offline"
    group: str | None = None
    tags: list[str] = field(default_factory=list)


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
    logger: LoggerConfig = MISSING
    resume: str | None = None
    seed: int = 1


@dataclass
class EvaluateConfig:
    """The configuration of `txl evaluate`."""

    checkpoint: str = MISSING
    splits: list[str] = field(default_factory=lambda: ["valid", "test"])
    batch_size: int | None = None
    segment_len: int | None = None
    mem_len: int | None = None
    same_length: bool | None = None
    clamp_len: int | None = None
    data_path: str | None = None
    max_segments: int | None = None
    num_threads: int | None = None


def register_schemas() -> None:
    """Make the schemas known to Hydra under the names that `conf/` uses."""
    store = ConfigStore.instance()
    store.store(name="train_schema", node=Config)
    store.store(name="evaluate_schema", node=EvaluateConfig)
    for group, node in {
        "model": ModelConfig,
        "encoding": EncodingConfig,
        "memory": MemoryConfig,
        "data": DataConfig,
        "optimizer": OptimizerConfig,
        "trainer": TrainerConfig,
        "logger": LoggerConfig,
    }.items():
        store.store(group=group, name="schema", node=node)


def typed(config: Any) -> Config:
    """The dataclasses behind a composed configuration, all interpolations resolved."""
    return OmegaConf.to_object(config)  # type: ignore[return-value]


def plain(config: Any) -> dict[str, Any]:
    """Nothing but dicts, lists, numbers and strings: what checkpoints and loggers may hold."""
    if not OmegaConf.is_config(config):
        config = OmegaConf.structured(config)
    return OmegaConf.to_container(config, resolve=True)  # type: ignore[return-value]


GROUP_OF_FIELD = {"mem_len": "memory.mem_len", "memory_start": "memory.start"}


def transformer_xl_config(config: Config, vocab_size: int) -> TransformerXLConfig:
    """The model's own configuration out of the groups `model`, `encoding` and `memory`.

    Raises:
        OptionError: naming the option as it is typed.
    """
    if config.encoding.name != "relative":
        raise OptionError("encoding", config.encoding.name, "must be relative")
    sizes = {name: value for name, value in vars(config.model).items() if name != "name"}
    try:
        return TransformerXLConfig(
            vocab_size=vocab_size,
            mem_len=config.memory.mem_len,
            memory_start=config.memory.start,  # type: ignore[arg-type]
            **sizes,
        )
    except OptionError as error:
        option = GROUP_OF_FIELD.get(error.option, f"model.{error.option}")
        raise OptionError(option, error.value, error.allowed) from error


def evaluation_lengths(config: Config) -> dict[str, Any]:
    """Lengths for `with_lengths` in validation and test, the open ones filled in (paper's train.py)."""
    evaluation, mem_len = config.evaluation, config.evaluation.mem_len
    if mem_len is None and config.memory.mem_len == 0:
        mem_len = 0
    elif mem_len is None:
        mem_len = max(0, config.memory.mem_len + config.data.segment_len - evaluation.segment_len)
    if mem_len < 0:
        raise OptionError("evaluation.mem_len", mem_len, "must be an integer >= 0")
    lengths: dict[str, Any] = {"mem_len": mem_len}
    for name in ("same_length", "clamp_len"):
        value = getattr(evaluation, name)
        lengths[name] = getattr(config.model, name) if value is None else value
    return lengths
