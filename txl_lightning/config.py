"""Typed schemas behind `conf/`: an unknown key or a value of the wrong type is an error."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, OmegaConf

from txl_lightning.errors import OptionError, require
from txl_lightning.model.config import TransformerXLConfig
from txl_lightning.model.recurrent import RecurrentConfig

PACKAGE = Path(__file__).parent
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
    """Group `encoding`: how positions enter.

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
    each one's columns in so many parts. `max_nonfinite_steps` skipped steps in a row end the run.
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
    context_curve: ContextCurveConfig = field(default_factory=ContextCurveConfig)
    logger: LoggerConfig = MISSING
    loss: str = "full"
    resume: str | None = None
    initial_weights: str | None = None
    seed: int = 1


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


OPTION_OF_FIELD = {
    "mem_len": "memory.mem_len",
    "memory_start": "memory.start",
    "encoding": "encoding",
    "table_len": "encoding.table_len",
}


def architecture(config: Config, vocab_size: int) -> TransformerXLConfig | RecurrentConfig:
    """The model's own configuration out of the groups `model`, `encoding` and `memory`.

    Raises:
        OptionError: naming the option as it is typed.
    """
    sizes = {name: value for name, value in vars(config.model).items() if name != "name"}
    sizes |= {"vocab_size": vocab_size, "cutoffs": tuple(config.model.cutoffs)}
    try:
        if isinstance(config.model, RecurrentModelConfig):
            recurs = config.memory.mem_len > 0
            require(recurs, "mem_len", config.memory.mem_len, f"must be > 0: {config.model.name} carries its state")
            return RecurrentConfig(**sizes)
        return TransformerXLConfig(
            encoding=config.encoding.name,  # type: ignore[arg-type]
            table_len=table_len(config),
            mem_len=config.memory.mem_len,
            memory_start=config.memory.start,  # type: ignore[arg-type]
            **sizes,
        )
    except OptionError as error:
        option = OPTION_OF_FIELD.get(error.option, f"model.{error.option}")
        raise OptionError(option, error.value, error.allowed) from error


def table_len(config: Config) -> int | None:
    """Rows of a trained position table: as given, or what training needs."""
    if config.encoding.table_len is not None or config.encoding.name not in ("shaw", "al_rfou"):
        return config.encoding.table_len
    positions = config.data.segment_len + extended_context(config)
    return positions + config.memory.mem_len if config.encoding.name == "shaw" else positions


def extended_context(config: Config) -> int:
    """Tokens of extended context that the training streams put in front of every segment."""
    return config.model.ext_len if isinstance(config.model, TransformerXLModelConfig) else 0


def evaluation_extended_context(evaluation: EvaluationConfig, models_own: int) -> int:
    """And those in front of the segments of validation and test."""
    return models_own if evaluation.ext_len is None else evaluation.ext_len


def position_limit(config: Config) -> int | None:
    """The longest segment, extended context included, whose absolute positions were trained; None for distances.

    A converted `al_rfou` was trained as far as its table reaches.
    """
    if not isinstance(config.model, TransformerXLModelConfig) or config.encoding.name not in ("absolute", "al_rfou"):
        return None
    return max(table_len(config) or 0, config.data.segment_len + extended_context(config))


def evaluation_lengths(config: Config) -> dict[str, Any]:
    """Lengths for `with_lengths` in validation and test, the open ones filled in (paper's train.py).

    Nothing for a recurrent model, which has no lengths.

    Raises:
        OptionError: a recurrent model is given one, or segment and extended context exceed `position_limit`.
    """
    if not isinstance(config.model, TransformerXLModelConfig):
        for name in ("mem_len", "ext_len", "same_length", "clamp_len"):
            value = getattr(config.evaluation, name)
            require(value is None, f"evaluation.{name}", value, f"must be null: {config.model.name} has no such length")
        return {}
    evaluation, mem_len = config.evaluation, config.evaluation.mem_len
    if mem_len is None and config.memory.mem_len == 0:
        mem_len = 0
    elif mem_len is None:
        mem_len = max(0, config.memory.mem_len + config.data.segment_len - evaluation.segment_len)
    if mem_len < 0:
        raise OptionError("evaluation.mem_len", mem_len, "must be an integer >= 0")
    ext_len, limit = evaluation_extended_context(evaluation, extended_context(config)), position_limit(config)
    if limit is not None and evaluation.segment_len + ext_len > limit:
        named = "ext_len" if evaluation.ext_len else "segment_len"
        allowed = f"segment_len + ext_len = {evaluation.segment_len + ext_len} must be at most {limit}, "
        allowed += f"the positions that encoding={config.encoding.name} was trained with"
        raise OptionError(f"evaluation.{named}", getattr(evaluation, named), allowed)
    lengths: dict[str, Any] = {"mem_len": mem_len, "ext_len": ext_len}
    for name in ("same_length", "clamp_len"):
        value = getattr(evaluation, name)
        lengths[name] = getattr(config.model, name) if value is None else value
    return lengths
