"""Typed schemas for `conf/`: an unknown key or a value with the wrong type is an error."""

from __future__ import annotations

import json
import math
import operator
import os
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from omegaconf import MISSING, OmegaConf, open_dict

from txl_lightning.config.architecture import (
    ModelOptions,
    Options,
    Positive,
    RecurrentOptions,
    TransformerXLConfig,
    TransformerXLOptions,
)
from txl_lightning.errors import (
    LENGTH,
    Count,
    Length,
    Threads,
    UserError,
    at_most,
    one_of,
    require,
)
from txl_lightning.registry import load_guests, of_a_file

CONF = Path(__file__).parents[1] / "conf"
if not CONF.is_dir():  # in a checkout
    CONF = Path(__file__).parents[2] / "conf"

BETAS = (
    lambda x: [0 <= beta < 1 for beta in x] == [True, True],
    "must be two numbers in [0, 1)",
)
Seed = Annotated[int, (lambda x: 0 <= x < 2**32, "must be an integer >= 0 and below 2^32")]
AT_LEAST_ZERO = (lambda x: 0 <= x < math.inf, "must be >= 0 and finite")

WITHOUT_PATH = (None, "auto")  # values for `resume` that name no checkpoint

# `${product:a,b}` and `${sum:a,b}` in a config; here, because every process that reads a config imports the schemas.
OmegaConf.register_new_resolver("product", operator.mul, replace=True)
OmegaConf.register_new_resolver("sum", operator.add, replace=True)


@dataclass(kw_only=True)
class ModelConfig(ModelOptions):
    """Group `model`.

    Attributes:
        name: the model's name in W&B and in tables.
    """

    prefix = "model."
    name: str = MISSING


@dataclass(kw_only=True)
class TransformerXLModelConfig(TransformerXLOptions, ModelConfig):
    """Group `model` for a Transformer-XL."""


@dataclass(kw_only=True)
class RecurrentModelConfig(RecurrentOptions, ModelConfig):
    """Group `model` for a recurrent baseline."""


@dataclass
class EncodingConfig(Options):
    """Group `encoding` (see `EncodingKind`).

    Attributes:
        name: position encoding, built in or registered by your file.
        table_len: rows in a trained table; null for as many as training needs: segment + extended context, and for
            shaw the memory too.
    """

    prefix = "encoding."
    name: str = MISSING
    table_len: int | None = None


@dataclass
class MemoryConfig(Options):
    """Group `memory`: the memory's length in training, its start and its reset.

    Attributes:
        mem_len: M, longest memory in tokens; 0 for no recurrence.
        segments: memory length that memory=on sets, in training segments. Null in checkpoints of 0.5.
        gradient_segments: how many segments the gradient flows back through the memory; 0 as in the paper. With k a
            training step reads k + 1 consecutive segments.
        start: empty, or zeros that are attended to.
        reset: never, or document to hide all that stands before the document (see `data.document_start`).
    """

    prefix = "memory."
    mem_len: int = MISSING
    segments: int | None = None
    gradient_segments: Annotated[int, LENGTH, at_most(1_000)] = 0
    start: str = TransformerXLConfig.memory_start
    reset: str = TransformerXLConfig.memory_reset


@dataclass
class DataConfig(Options):
    """Group `data`: the corpus, its level, and the training streams.

    Attributes:
        name: corpus.
        level: byte, char, word, bpe or ids, as the corpus allows.
        vocab_size: tokens of a subword vocabulary that is trained, or ids. Null for at most 2048 subwords.
        tokenizer: tokenizer.json for level=bpe; null trains one on the training split.
        min_count: rarer training symbols become <unk>; null for 2 with words, 1 with characters.
        root: folder for all corpora; null for the variable TXL_DATA. It is read when the data is loaded, so a
            checkpoint finds its corpus on another machine.
        seed: draws the order of lm1b's sentences, and where streams start with random_start.
        random_start: begin the training streams at a random token in the split and wrap around its end.
        document_start: regular expression for lines that begin a document; null for files alone.
        cache_dir: folder for prepared corpora.
        batch_size: B, training streams on all processes together.
        segment_len: T, tokens per training segment.
    """

    prefix = "data."
    name: str = MISSING
    level: str = "byte"
    vocab_size: int | None = None
    tokenizer: str | None = None
    min_count: int | None = None
    root: str | None = None
    seed: int = 1
    random_start: bool = False
    document_start: str | None = None
    cache_dir: str = "~/.cache/txl_lightning"
    batch_size: Count = MISSING
    segment_len: Count = MISSING


@dataclass
class FileData(DataConfig):
    """Options for `data=file`.

    At level ids `path` is a file of token ids or a folder of such files; `vocab_size`
    null is the largest id + 1 or the number of `names`, and `document_start` matches the whole number or name of an
    id that begins documents.

    Attributes:
        path: file, folder, pattern, a list with these, or {train: …, valid: …, test: …}. A pattern is like
            'docs/**/*.tex'. Files whose names say no split are joined and cut by `fractions`.
        column: field to read in each record; null for text or content, or for ids input_ids.
        format: format for all files; null goes by their suffixes.
        skip_bad: leave out records that cannot be read, and count them.
        fractions: train, valid and test shares where names say no split.
        sentence_marks: sentence marks for a model trained on lm1b, as in data=lm1b.
        dtype: id type, which a raw file does not state.
        names: file with a name for every id.
    """

    path: Any = None
    column: str | None = None
    format: str | None = None
    skip_bad: bool = False
    fractions: list[float] = field(default_factory=lambda: [0.9, 0.05, 0.05])
    sentence_marks: Annotated[str, one_of("start", "both")] = "start"
    dtype: str | None = None
    names: str | None = None


@dataclass
class Enwik8Data(DataConfig):
    """Options for `data=enwik8`.

    Attributes:
        newlines: dropped as in the paper, or kept.
    """

    newlines: Annotated[str, one_of("dropped", "kept")] = "dropped"


@dataclass
class Lm1bData(DataConfig):
    """Options for `data=lm1b`.

    Attributes:
        sentence_marks: <S> before each sentence, or at both ends as in the TensorFlow code.
    """

    sentence_marks: Annotated[str, one_of("start", "both")] = "start"


@dataclass
class RecallData(DataConfig):
    """Options for `data=recall`, a generated text.

    Attributes:
        distance: how many tokens back the repeated one stands; distances in a list take turns.
        repeats: probability that a token repeats that one.
        symbols: number of symbols that the other tokens are drawn from.
        n_tokens: tokens in the text.
        text_seed: draws the text.
    """

    distance: Any = None
    repeats: float = 0.9
    symbols: int = 8
    n_tokens: Count = 400_000
    text_seed: int = 1


def file_data(data: DataConfig, path: Any, level: str) -> FileData:
    """Return the options that read the files `path` like another corpus.

    Raw ids' type, the format and the column belong to the files: `{path: …, dtype: …, format: …, column: …}`.
    """
    of_files = {"path": path}
    if isinstance(path, Mapping) and "path" in path:
        of_files = dict(path)
    known = ("path", "dtype", "format", "column")
    allowed = f"may have {', '.join(known)}"
    require(set(of_files) <= set(known), "data.path", of_files, allowed)
    read_as = FileData()
    for name in vars(read_as):
        if name not in known and hasattr(data, name):
            setattr(read_as, name, getattr(data, name))
    return replace(read_as, name="file", level=level, **of_files)


@dataclass
class EvaluationConfig(Options):
    """Node `evaluation`: lengths for validation and test; null ones are training's, whatever `segment_len` is.

    The paper's train.py keeps memory plus segment constant: set `mem_len` for that.

    Attributes:
        batch_size: streams in validation and test.
        segment_len: tokens per segment.
        mem_len: memory in tokens; null for training's.
        ext_len: extended context in tokens; null for training's, or windows without a memory.
        same_length: whether all tokens attend to equally many keys; null for training's.
        clamp_len: larger distances are encoded like this one; null for training's, -1 for no limit.
        max_segments: segments in the final evaluation; null for the whole split.
    """

    prefix = "evaluation."
    batch_size: Count = 10
    segment_len: Count = MISSING
    mem_len: Length | None = None
    ext_len: Length | None = None
    same_length: bool | None = None
    clamp_len: int | None = None
    max_segments: Count | None = None


@dataclass
class OptimizerConfig(Options):
    """Group `optimizer`: Adam, AdamW or Muon, linear warm-up, then cosine decay or constant, gradient clipping.

    With `_target_` the group accepts that class's arguments, such as `optimizer.momentum=0.9`; `typed` gathers them in
    `arguments`.

    Attributes:
        name: adam, adamw or muon.
        _target_: another optimizer class; its arguments become options in this group.
        arguments: that class's arguments.
        lr: highest learning rate.
        betas: decay rates for Adam's two moments.
        weight_decay: weight decay, relative to the learning rate.
        weight_decay_on: matrices in the layers, or all parameters.
        schedule: cosine decay to min_lr at trainer.max_steps, or constant.
        decay_after_warmup: whether the decay begins after the warm-up, not with it.
        warmup_steps: steps in which the learning rate rises from 0.
        min_lr: learning rate at the end of the decay.
        clip_norm: largest gradient norm; 0 for no clipping.
        ns_precision: number type in which Muon makes a matrix orthogonal: bf16-true as in torch, 32-true or auto. auto
            is bf16-true under mixed precision and 32-true otherwise.
    """

    prefix = "optimizer."
    name: Annotated[str, one_of("adam", "adamw", "muon")] = MISSING
    _target_: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    lr: Positive = MISSING
    betas: Annotated[list[float], BETAS] = field(default_factory=lambda: [0.9, 0.999])
    weight_decay: Annotated[float, AT_LEAST_ZERO] = 0.0
    weight_decay_on: Annotated[str, one_of("matrices", "all")] = "matrices"
    schedule: Annotated[str, one_of("cosine", "constant")] = "cosine"
    decay_after_warmup: bool = False
    warmup_steps: Length = 0
    min_lr: Annotated[float, AT_LEAST_ZERO] = 0.0
    clip_norm: Annotated[float, (lambda x: x >= 0, "must be >= 0 (0 for no clipping)")] = 0.25
    ns_precision: Annotated[str, one_of("auto", "bf16-true", "32-true")] = "bf16-true"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in self.arguments.items():
            allowed = "no such option without optimizer._target_=CLASS"
            require(self._target_ is not None, f"optimizer.{name}", value, allowed)


@dataclass
class TrainerConfig(Options):
    """Group `trainer`: steps, hardware, and intervals for logging and validation.

    The group accepts every other argument that Lightning's Trainer has, such as `trainer.limit_train_batches=3`;
    `typed` gathers them in `lightning`. A run's last step is always validated.

    Attributes:
        max_steps: optimizer steps.
        accelerator: cpu, gpu, mps (Apple's GPU), or auto for the first available: gpu, mps, cpu.
        devices: processes on each machine; they share the global batch.
        num_nodes: machines.
        stream_groups: parts that each process splits its streams into, to accumulate gradients.
        precision: 32-true, bf16-mixed, 16-mixed, 64-true, or auto for whichever of the first two is faster here.
        num_threads: CPU threads; null for as many as this size pays for.
        compile: whether forward and backward pass are compiled.
        log_every_n_steps: steps between values in the training curves.
        val_every_n_steps: steps between validations; null for every epoch's end.
        val_max_segments: segments per validation during training; null for the whole split.
        progress_bar: whether the progress is shown.
        lightning: further arguments for Lightning's Trainer; give them as trainer.ARGUMENT=VALUE.
    """

    prefix = "trainer."
    max_steps: Count = MISSING
    accelerator: Annotated[str, one_of("auto", "cpu", "gpu", "mps")] = "cpu"
    devices: Count = 1
    num_nodes: Count = 1
    stream_groups: Count = 1
    precision: Annotated[str, one_of("auto", "32-true", "64-true", "bf16-mixed", "16-mixed")] = (
        "32-true"
    )
    num_threads: Threads | None = None
    compile: bool = False
    log_every_n_steps: Count = 50
    val_every_n_steps: Count | None = None
    val_max_segments: Count | None = None
    progress_bar: bool = True
    lightning: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in self.lightning.items():
            ours = LIGHTNINGS_NAMES.get(f"trainer.{name}")
            require(not ours, f"trainer.{name}", value, f"is {ours} here")
        if "check_val_every_n_epoch" in self.lightning:
            self.val_every_n_steps = None


@dataclass
class CheckpointConfig(Options):
    """Node `checkpoint`: how often to save, in addition to validation and the run's end.

    Attributes:
        enabled: whether checkpoints are written.
        every_n_steps: steps between checkpoints, besides the ones after validations.
    """

    prefix = "checkpoint."
    enabled: bool = True
    every_n_steps: Count = 500


@dataclass
class ContextCurveConfig(Options):
    """Node `context_curve`: validation loss with exactly c context tokens, and RECL, during training.

    Measured at 500 positions in the split, in blocks; RECL on the hardest 10 %, 50 % and all positions.

    Attributes:
        every_n_steps: steps between curves; null for none.
        max_context: the largest of the eight context lengths c.
    """

    prefix = "context_curve."
    every_n_steps: Count | None = None
    max_context: Annotated[int, (lambda x: x >= 8, "must be an integer >= 8")] = 128


@dataclass
class ExtrasConfig(Options):
    """Node `extras`, as in lightning-hydra-template.

    Attributes:
        ignore_warnings: whether to hide Python's warnings.
        enforce_tags: whether a run without tags is refused.
        print_config: whether the whole config is printed before the run.
    """

    prefix = "extras."
    ignore_warnings: bool = False
    enforce_tags: bool = False
    print_config: bool = False


@dataclass
class LoggerConfig(Options):
    """Group `logger`: where the curves go.

    The group accepts Lightning loggers, such as `logger.mine={_target_: CLASS, name: curves}`; `typed` gathers them in
    `each`.

    Attributes:
        project: project in W&B (default of logger=wandb: the variable WANDB_PROJECT).
        mode: offline, online or disabled W&B (default of logger=wandb: the variable WANDB_MODE).
        group: group in W&B; null for the multirun's name (default of logger=wandb: the variable WANDB_RUN_GROUP).
        tags: tags in W&B, beside the model's (default of logger=wandb: the variable WANDB_TAGS).
        each: loggers; give them as logger.NAME={_target_: CLASS, ARGUMENT: VALUE, …}. null is W&B's.
    """

    prefix = "logger."
    project: str = "txl_lightning"
    mode: Annotated[str, one_of("offline", "online", "disabled")] = "offline"
    group: str | None = None
    tags: list[str] = field(default_factory=list)
    each: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments = self.each.get("wandb")
        allowed = "has the options logger.project, logger.mode, logger.group and logger.tags"
        require(arguments is None, "logger.wandb", arguments, allowed)


@dataclass
class Config(Options):
    """Config for one training run.

    `variant` is empty, or names a variant in `txl_lightning.variants` together with its options; `architecture`
    validates them. `callbacks` has Lightning callbacks by name, each with its class as `_target_` and the class's
    arguments.

    Attributes:
        loss: over all positions in a segment (full), its last half (half), or as many random ones (random_half), drawn
            without replacement for each step, the same in all streams.
        ckpt_path: checkpoint to resume, as resume.
        resume: checkpoint, or auto for the last good one of the run directory.
        initial_weights: checkpoint whose weights a new run begins with.
        train: false evaluates the weights in ckpt_path.
        test: false leaves the test split unread.
        tags: W&B tags.
        task_name: folder in outputs and multirun.
        seed: draws initial weights, dropout and where streams start.
    """

    model: ModelConfig = MISSING
    encoding: EncodingConfig = MISSING
    memory: MemoryConfig = MISSING
    variant: dict[str, Any] = field(default_factory=dict)
    data: DataConfig = MISSING
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    optimizer: OptimizerConfig = MISSING
    trainer: TrainerConfig = MISSING
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    context_curve: ContextCurveConfig = field(default_factory=ContextCurveConfig)
    callbacks: dict[str, Any] = field(default_factory=dict)
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    extras: ExtrasConfig = field(default_factory=ExtrasConfig)
    loss: Annotated[str, one_of("full", "half", "random_half")] = "full"
    ckpt_path: str | None = None
    resume: str | None = None
    initial_weights: str | None = None
    train: bool = True
    test: bool = True
    tags: list[str] = field(default_factory=list)
    task_name: str = "."
    seed: Seed = 1


# Groups that take other libraries' arguments without `+`, and the field that gathers them.
OPEN_GROUPS = {"trainer": "lightning", "optimizer": "arguments", "logger": "each"}
# Lightning's name -> the option that does the same here.
LIGHTNINGS_NAMES = {
    "trainer.enable_checkpointing": "checkpoint.enabled",
    "trainer.enable_progress_bar": "trainer.progress_bar",
    "trainer.limit_test_batches": "evaluation.max_segments",
    "trainer.limit_val_batches": "trainer.val_max_segments",
}


def typed(config: Any) -> Any:
    """Return a composed config's dataclass, with all interpolations resolved.

    Options with Lightning's names set ours. Where `OPEN_GROUPS` accepts other libraries' arguments, one field gathers
    them.

    Raises:
        OptionError: a value is not allowed.
    """
    config = config.copy()
    OmegaConf.set_readonly(config, False)
    with open_dict(config):
        for name, gathered in OPEN_GROUPS.items():
            group = config.get(name)
            if group is None:
                continue
            kind: Any = OmegaConf.get_type(group)
            known = [described.name for described in fields(kind)]
            for argument in list(group):
                if argument not in known:
                    ours = LIGHTNINGS_NAMES.get(f"{name}.{argument}")
                    place = ours or f"{name}.{gathered}.{argument}"
                    OmegaConf.update(config, place, group.pop(argument))
    return OmegaConf.to_object(config)


# Options of the groups, by the names under which YAML files in `conf/` refer to them.
SCHEMAS: dict[str, type[Options]] = {
    "model/schema": TransformerXLModelConfig,
    "model/recurrent_schema": RecurrentModelConfig,
    "encoding/schema": EncodingConfig,
    "memory/schema": MemoryConfig,
    "optimizer/schema": OptimizerConfig,
    "trainer/schema": TrainerConfig,
    "logger/schema": LoggerConfig,
    "data/schema": DataConfig,
    "data/file_schema": FileData,
    "data/enwik8_schema": Enwik8Data,
    "data/lm1b_schema": Lm1bData,
    "data/recall_schema": RecallData,
}


def data_class(corpus: Any) -> Any:
    """Return the dataclass for a corpus's options, also from a user's file; `DataConfig` if it is unknown."""
    load_guests()
    return SCHEMAS.get(f"data/{corpus}_schema", DataConfig)


# A config as dicts, lists, numbers and strings, for checkpoints and loggers. Not through OmegaConf, for which a literal
# `${…}` would be an interpolation.
plain = asdict


def stored(config: Config) -> dict[str, Any]:
    """Return the `plain` config for `config.yaml` and checkpoints: with absolute corpus paths, `~` kept."""
    values = plain(config)
    for name in ("path", "root"):
        if name in values["data"]:
            values["data"][name] = _absolute(values["data"][name])
    return values


def _absolute(path: Any) -> Any:
    if isinstance(path, list):
        return [_absolute(part) for part in path]
    if isinstance(path, str) and not path.startswith("~"):
        return os.path.abspath(path)
    return path


def flat(values: dict[str, Any]) -> dict[str, Any]:
    """Flatten a nested config to dotted names."""
    items: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            for inner, part in flat(value).items():
                items[f"{name}.{inner}"] = part
        else:
            items[name] = value
    return items


# Options of earlier versions, and what to do instead. A group stands for its options too.
REMOVED = {
    "beyond": "is now variant",
    "logger.each": "is now logger",
    "trainer.graph": "was removed: no GPU ever ran it; trainer.compile=true compiles the step",
    "data.block_len": "was removed: data.distance may be a list of distances, which take turns",
    "checkpoint.keep_best": "was removed: callbacks.NAME={_target_: lightning.pytorch.callbacks.ModelCheckpoint, …}",
    "checkpoint.keep_every_n_steps": "was removed: callbacks=keep_weights callbacks.keep_weights.every_n_train_steps=N",
    "trainer.callbacks": "is now callbacks.NAME={_target_: CLASS, …}, with a NAME that you choose",
    "trainer.kernel": "was removed: set Attention.kernel (docs/gpus.md)",
    "logger.name": "was removed: logger=NAME chooses",
    "logger._target_": "is now logger.NAME._target_, with a NAME that you choose",
    "logger.arguments": "are now options: logger.NAME.ARGUMENT=VALUE",
}


def from_plain(values: dict[str, Any]) -> Config:
    """Return the config from its `plain` form, as in checkpoints, also of 0.5; its values are literal, also `${…}`.

    Raises:
        OptionError: a value is not allowed.
        TypeError: an option is unknown.
    """
    options = deepcopy(values)
    if "beyond" in options:
        options["variant"] = options.pop("beyond")
    for old in REMOVED:
        group, _, name = old.partition(".")
        if name not in ("", "each"):
            options[group].pop(name, None)
    if "\\u0000" in json.dumps(options):
        raise UserError("its config has a null byte, which no file name may have")
    kinds: Any = get_type_hints(Config)
    kinds["model"] = TransformerXLModelConfig
    if "cell" in options["model"]:
        kinds["model"] = RecurrentModelConfig
    corpus = options["data"]["name"]
    kinds["data"] = data_class(corpus)
    is_known = set(options["data"]) <= set(get_type_hints(kinds["data"]))
    require(is_known, "data", corpus, f"must be a corpus of this version, or {of_a_file()}")
    for name, values_of_group in options.items():
        if is_dataclass(kinds.get(name)):
            options[name] = kinds[name](**values_of_group)
    return Config(**options)
