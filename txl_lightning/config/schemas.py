"""Typed schemas of `conf/`: an unknown key or a value of the wrong type is an error."""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from omegaconf import MISSING, OmegaConf, open_dict

from txl_lightning.config.architecture import (
    POSITIVE,
    ModelOptions,
    RecurrentOptions,
    TransformerXLOptions,
    option,
)
from txl_lightning.config.renamed import with_new_names
from txl_lightning.errors import (
    COUNT,
    LENGTH,
    OptionError,
    Rule,
    UserError,
    at_most,
    check,
    one_of,
    require,
)
from txl_lightning.registry import load_guests, of_a_file

PACKAGE = Path(__file__).parents[1]
CONF = PACKAGE / "conf" if (PACKAGE / "conf").is_dir() else PACKAGE.parent / "conf"

BETAS: Rule = (
    lambda x: [0 <= beta < 1 for beta in x] == [True, True],
    "must be two numbers in [0, 1)",
)
SEED: Rule = (
    lambda x: 0 <= x < 2**32,
    "must be an integer >= 0 and below 2^32",
)  # of NumPy's generators too
AT_LEAST_ZERO: Rule = (lambda x: 0 <= x < math.inf, "must be >= 0 and finite")

WITHOUT_PATH = (None, "auto", "replace")  # values of `resume` that name no checkpoint

# `${product:a,b}` and `${sum:a,b}` in a config; here, because every process that reads a config imports the schemas.
OmegaConf.register_new_resolver("product", operator.mul, replace=True)
OmegaConf.register_new_resolver("sum", operator.add, replace=True)


@dataclass(kw_only=True)
class ModelConfig(ModelOptions):
    """Group `model`: name and options of a model."""

    name: str = MISSING


@dataclass(kw_only=True)
class TransformerXLModelConfig(TransformerXLOptions, ModelConfig):
    """Group `model` for a Transformer-XL."""


@dataclass(kw_only=True)
class RecurrentModelConfig(RecurrentOptions, ModelConfig):
    """Group `model` for a recurrent baseline."""


@dataclass
class EncodingConfig:
    """Group `encoding`: `name` of the encoding of positions, built in or custom (see `EncodingKind`)."""

    name: str = MISSING


@dataclass
class TableEncodingConfig(EncodingConfig):
    """Group `encoding` for one with a trained table.

    `table_len` null means as many rows as training needs: segment + extended context, and for shaw the memory too.
    """

    table_len: int | None = None


@dataclass
class MemoryConfig:
    """Group `memory`: length of the memory in training (0 for no recurrence), its start and its reset.

    `reset=document` hides from every token all that stands before its document (see `DataConfig.document_start`).
    `segments` is the length that `memory=on` gives it, in training segments; null in checkpoints of earlier versions.
    With `gradient_segments=k` a step of training reads k + 1 consecutive segments, and the gradient flows from each
    through the memory to those before it; 0 is the paper's, whose memory carries no gradient.
    """

    mem_len: int = MISSING
    segments: int | None = None
    gradient_segments: int = option(0, LENGTH, at_most("gradient_segments"))
    start: str = "empty"
    reset: str = "never"


@dataclass
class DataConfig:
    """Group `data`: the corpus, its level, and the training streams.

    `root` is the folder of all corpora. Null means the variable TXL_DATA, which is read when the data is loaded, so
    that a checkpoint finds its corpus on another machine.
    `seed`, in `conf/` the run's, orders the sentences of lm1b, and with `random_start` draws where the training
    streams of other corpora begin; they wrap around the end of the split. Where a vocabulary is made from the text,
    symbols that occur less often in training than `min_count` are `<unk>` (null: 2 for words, 1 for characters). With
    `memory.reset=document` a document begins with every file, and with every line that the regular expression
    `document_start` matches (null: with files alone). At level bpe `tokenizer` is a `tokenizer.json`; null trains one
    with `vocab_size` tokens on the training split (null: at most 2048 for python-packages and own text, else 8192).
    """

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
    batch_size: int = option(MISSING, COUNT)
    segment_len: int = option(MISSING, COUNT)


@dataclass
class FileData(DataConfig):
    """Options of `data=file`.

    `path` is a file, a folder, a pattern such as 'docs/**/*.tex', a list of these, or a mapping of train, valid and
    test to them; files whose names say no split are joined and cut by `fractions`. For a model of lm1b
    `sentence_marks` is its corpus's.

    `format` names the format of all files; null is what their suffixes say. `column` is the one to read of records;
    null is text or content, or input_ids for ids. With `skip_bad` records that cannot be read are left out and counted.

    At level ids `path` is a file of token ids, a folder of such files, or three paths: train, valid, test. `dtype` is
    the type of the ids in a raw file, which does not state it; `vocab_size` null is the largest id + 1, or the number
    of `names`, a file with a name for every id. `document_start` matches the whole number or name of an id that begins
    documents.
    """

    path: Any = None
    column: str | None = None
    format: str | None = None
    skip_bad: bool = False
    fractions: list[float] = field(default_factory=lambda: [0.9, 0.05, 0.05])
    sentence_marks: str = "start"
    dtype: str | None = None
    names: str | None = None


@dataclass
class Enwik8Data(DataConfig):
    """Options of `data=enwik8`: `newlines` are dropped as in the paper, or kept."""

    newlines: str = "dropped"


@dataclass
class Lm1bData(DataConfig):
    """Options of `data=lm1b`: `sentence_marks` puts `<S>` at the `start` of each sentence, or at `both` ends.

    Both ends are marked in the TensorFlow code.
    """

    sentence_marks: str = "start"


@dataclass
class RecallData(DataConfig):
    """Options of `data=recall`: a generated text of `n_tokens`, drawn with `text_seed`.

    A token repeats the one `distance` tokens before with probability `repeats`, else it is one of `symbols`; `distance`
    may be a list of distances that take turns.
    """

    distance: Any = None
    repeats: float = 0.9
    symbols: int = 8
    n_tokens: int = 400_000
    text_seed: int = 1


OWN_OPTIONS: dict[str, type[DataConfig]] = {  # of a corpus, by `data.name`
    "file": FileData,
    "enwik8": Enwik8Data,
    "lm1b": Lm1bData,
    "recall": RecallData,
}


def data_class(name: Any) -> type[DataConfig]:
    """Return the dataclass of a corpus's options, also from a user's file; `DataConfig` if it is unknown."""
    load_guests()
    return OWN_OPTIONS.get(str(name), DataConfig)


def file_data(data: DataConfig, path: Any, level: str) -> FileData:
    """Return the options that read the files `path` like another corpus.

    The type of raw ids, the format and the column belong to the files: `{path: …, dtype: …, format: …, column: …}`.
    """
    of_files = {"path": path}
    if isinstance(path, Mapping) and "path" in path:
        of_files = dict(path)
    known = ("path", "dtype", "format", "column")
    allowed = f"may have {', '.join(known)}"
    require(set(of_files) <= set(known), "data.path", of_files, allowed)
    shared: dict[str, Any] = {}
    for option_of_file in fields(FileData):
        if hasattr(data, option_of_file.name):
            shared[option_of_file.name] = getattr(data, option_of_file.name)
    shared.update(name="file", level=level, dtype=None, format=None, column=None)
    shared.update(of_files)
    return FileData(**shared)


@dataclass
class EvaluationConfig:
    """Node `evaluation`: lengths of validation and test, which may differ from training's.

    Lengths that are null are training's, whatever `segment_len` is. (The paper's train.py keeps the sum of
    memory and segment instead: give `mem_len` for that.) `max_segments`
    limits the final evaluation (null: the whole split); `trainer.val_max_segments` limits validation during training.
    """

    batch_size: int = option(10, COUNT)
    segment_len: int = option(MISSING, COUNT)
    mem_len: int | None = None
    ext_len: int | None = None
    same_length: bool | None = None
    clamp_len: int | None = None
    max_segments: int | None = option(None, COUNT)


@dataclass
class OptimizerConfig:
    """Group `optimizer`: Adam, AdamW or Muon, linear warm-up, then cosine decay (or constant), gradient clipping.

    `weight_decay` is of the matrices of the layers, with `weight_decay_on=all` of all parameters.
    `ns_precision` is the number type in which Muon makes a matrix orthogonal: bf16-true as in `torch.optim.Muon`,
    32-true, or auto for bf16-true under mixed precision and 32-true otherwise.

    `_target_` is the class of another optimizer. Then the group is open for its arguments, such as
    `optimizer.momentum=0.9`; `typed` gathers them in `arguments`.
    """

    name: str = option(MISSING, one_of("adam", "adamw", "muon"))
    _target_: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    lr: float = option(MISSING, POSITIVE)
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999], metadata={"rules": (BETAS,)})
    weight_decay: float = option(0.0, AT_LEAST_ZERO)
    weight_decay_on: str = option("matrices", one_of("matrices", "all"))
    schedule: str = option("cosine", one_of("cosine", "constant"))
    decay_after_warmup: bool = False
    warmup_steps: int = option(0, LENGTH)
    min_lr: float = option(0.0, AT_LEAST_ZERO)
    clip_norm: float = option(0.25, (lambda x: x >= 0, "must be >= 0 (0 for no clipping)"))
    ns_precision: str = option("bf16-true", one_of("auto", "bf16-true", "32-true"))


@dataclass
class TrainerConfig:
    """Group `trainer`: number of steps, hardware, and intervals of logging and validation.

    `accelerator` is cpu, gpu, mps (Apple's GPU), or auto for the first of gpu, mps and cpu that the machine has.
    `devices` processes on each of `num_nodes` machines share the global batch. `stream_groups` accumulates gradients
    over that many groups of each process's streams. `num_threads` null means as many CPU threads as this size pays
    for, stated in `config.yaml`. `compile` compiles the forward and backward pass.
    `val_every_n_steps` null validates at the end of every epoch, and the last step of a run is always validated.
    `callbacks` lists callbacks of Lightning, each with its class as `_target_` and the arguments of the class.

    The group is open for every other argument of Lightning's Trainer, such as `trainer.limit_train_batches=3`; `typed`
    gathers them in `lightning`.
    """

    max_steps: int = option(MISSING, COUNT)
    accelerator: str = option("cpu", one_of("auto", "cpu", "gpu", "mps"))
    devices: int = option(1, COUNT)
    num_nodes: int = option(1, COUNT)
    stream_groups: int = option(1, COUNT)
    precision: str = option(
        "32-true", one_of("auto", "32-true", "64-true", "bf16-mixed", "16-mixed")
    )
    num_threads: int | None = option(None, COUNT, at_most("threads"))
    compile: bool = False
    log_every_n_steps: int = option(50, COUNT)
    val_every_n_steps: int | None = option(None, COUNT)
    val_max_segments: int | None = option(None, COUNT)
    progress_bar: bool = True
    callbacks: list[Any] = field(default_factory=list)
    lightning: dict[str, Any] = field(default_factory=dict)


@dataclass
class CheckpointConfig:
    """Node `checkpoint`: interval of checkpointing, in addition to validation and the end of the run.

    Every `keep_every_n_steps` steps (null: never) the weights are kept in `step{N}.ckpt`, for measurements over
    training. The `keep_best` best checkpoints by validation loss (null: `best.ckpt` alone) are kept as `best-{N}.ckpt`.
    """

    enabled: bool = True
    every_n_steps: int = option(500, COUNT)
    keep_every_n_steps: int | None = option(None, COUNT)
    keep_best: int | None = option(None, COUNT)


@dataclass
class ContextCurveConfig:
    """Node `context_curve`: validation loss with exactly c tokens of context, and RECL, during training.

    Measured every `every_n_steps` steps (null: never) at 500 positions of the split in blocks, for eight c up to
    `max_context`; RECL on the hardest 10 %, 50 % and all of the positions.
    """

    every_n_steps: int | None = option(None, COUNT)
    max_context: int = option(128, (lambda x: x >= 8, "must be an integer >= 8"))


def _of_wandb(variable: str, default: str | None) -> Any:
    return field(default_factory=lambda: os.environ.get(variable) or default)


def _mode_of_wandb() -> str:
    disabled = os.environ.get("WANDB_DISABLED", "").lower() in ("1", "true", "yes", "on")
    return os.environ.get("WANDB_MODE") or ("disabled" if disabled else "offline")


@dataclass
class LoggerConfig:
    """Group `logger`: destination of the curves; `project`, `mode`, `group` and `tags` are for W&B.

    These have the defaults WANDB_PROJECT, WANDB_MODE, WANDB_RUN_GROUP and WANDB_TAGS. `group` null is named
    after the multirun, a run is named by WANDB_NAME or after the model and its lengths; `tags` are added to the tags of
    the model. `_target_` is the class of `logger=lightning`, and `arguments` is a mapping with the arguments of a
    logger of Lightning; its `save_dir` is the run directory if none is given.

    `each` has an entry for every logger, so that Hydra joins `logger=[wandb,csv]`: null, or `_target_` and arguments
    of a logger of Lightning.
    """

    name: str = MISSING
    project: str = _of_wandb("WANDB_PROJECT", "txl_lightning")
    mode: str = field(default_factory=_mode_of_wandb)
    group: str | None = _of_wandb("WANDB_RUN_GROUP", None)
    tags: list[str] = field(
        default_factory=lambda: list(filter(None, os.environ.get("WANDB_TAGS", "").split(",")))
    )
    _target_: str | None = None
    arguments: Any = None
    each: dict[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the loggers."""
        return tuple(self.each) if len(self.each) > 1 else (self.name,)


@dataclass
class Config:
    """Config of one training run.

    `loss` is the mean over all positions of a segment (`full`), its last half (`half`), or as many positions drawn
    without replacement for each step (`random_half`), the same in all streams. `variant` is empty, or has the name of a
    variant in `txl_lightning.variants` and that variant's own options, which `architecture` validates.
    `resume` is a checkpoint, `auto` for the last good one of the run directory, or `replace` for a new run where a
    finished one is; `ckpt_path` is another name of it. Without `train` the weights of the checkpoint are evaluated, and
    without `test` the test split is not read.

    `callbacks` has callbacks of Lightning by name, each with its class as `_target_` and the arguments of the class.
    `tags` are tags of the run in W&B, and `task_name` names a folder in `outputs` and `multirun`.
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
    logger: LoggerConfig = MISSING
    loss: str = option("full", one_of("full", "half", "random_half"))
    ckpt_path: str | None = None
    resume: str | None = None
    initial_weights: str | None = None
    train: bool = True
    test: bool = True
    tags: list[str] = field(default_factory=list)
    task_name: str = "."
    seed: int = option(1, SEED)


def check_logger(logger: LoggerConfig, names: tuple[str, ...]) -> None:
    """Validate the logger of a command.

    Args:
        logger: group `logger`.
        names: loggers that the command has.

    Raises:
        OptionError: the name or the mode is not allowed.
    """
    for name in logger.names:
        made = "lightning" in names and isinstance(logger.each.get(name), Mapping)
        require(name in names or made, "logger", name, f"must be {' or '.join(names)}")
    allowed = "must be offline, online or disabled (default: the variable WANDB_MODE)"
    require(logger.mode in ("offline", "online", "disabled"), "logger.mode", logger.mode, allowed)


def check_values(options: Any, group: str = "") -> None:
    """Raise `OptionError` for a value that the rules of its field do not allow; null is allowed where its type has it.

    Args:
        options: dataclass of options, its groups included.
        group: its name with a dot, for errors.
    """
    for f in fields(options):
        value, option = getattr(options, f.name), f"{group}{f.name}"
        if is_dataclass(value):
            check_values(value, f"{option}.")
        check(option.removesuffix(".name"), value, *f.metadata.get("rules", ()))


def typed(config: Any) -> Any:
    """Return the dataclass of a composed config, with all interpolations resolved.

    Arguments of other libraries' classes, for which `OPEN_GROUPS` are open, are gathered in one field of the group.

    Raises:
        OptionError: such an argument was given, but no class that has it.
    """
    if OmegaConf.get_type(config) is not Config:
        return OmegaConf.to_object(config)
    config = config.copy()
    OmegaConf.set_readonly(config, False)
    with open_dict(config):
        for name, (kind, gathered) in OPEN_GROUPS.items():
            group = config[name]
            known = {option_of_group.name for option_of_group in fields(kind)}
            for argument in [key for key in group if key not in known]:
                group[gathered][argument] = group.pop(argument)
    options: Any = OmegaConf.to_object(config)
    if options.optimizer._target_ is None:
        for argument, value in options.optimizer.arguments.items():
            raise OptionError(
                f"optimizer.{argument}", value, "no such option without optimizer._target_=CLASS"
            )
    return options


OPEN_GROUPS = {"trainer": (TrainerConfig, "lightning"), "optimizer": (OptimizerConfig, "arguments")}


def open_schema(kind: type) -> Any:
    """Return the schema of a dataclass that takes other keys without `+`; `dict` for a group without own options."""
    schema = OmegaConf.structured(kind) if is_dataclass(kind) else OmegaConf.create()
    OmegaConf.set_struct(schema, False)
    return schema


def plain(config: Any) -> dict[str, Any]:
    """Return a config as plain dicts, lists, numbers and strings, for checkpoints and loggers."""
    return asdict(
        config
    )  # not through OmegaConf, for which a literal `${…}` would be an interpolation


def stored(config: Config) -> dict[str, Any]:
    """Return the `plain` config for `config.yaml` and checkpoints: with absolute paths of the corpus, `~` kept."""
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


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten a nested config to dotted names."""
    items: dict[str, Any] = {}
    for name, value in values.items():
        items |= (
            flat(value, f"{prefix}{name}.")
            if isinstance(value, dict)
            else {f"{prefix}{name}": value}
        )
    return items


def from_plain(values: dict[str, Any]) -> Config:
    """Return the config from its `plain` form, which checkpoints hold; its values are literal, also `${…}`.

    Raises:
        OmegaConfBaseException: a key or type does not fit a config.
    """
    values = with_new_names(values)
    schema = OmegaConf.structured(Config)
    schema.model = RecurrentModelConfig if "cell" in values["model"] else TransformerXLModelConfig
    schema.data = data_class(values["data"]["name"])
    known = (path.stem for path in (CONF / "data").glob("*.yaml"))
    if (
        not set(values["data"]) <= set(schema.data)
        and (name := values["data"]["name"]) not in known
    ):
        raise OptionError("data", name, f"must be a corpus of this version, or {of_a_file()}")
    if "table_len" in values["encoding"]:
        schema.encoding = TableEncodingConfig
    config: Config = typed(OmegaConf.merge(schema, _literal(values)))
    return config


def _literal(value: Any) -> Any:
    """Escape `${` for OmegaConf, in which a backslash before it counts."""
    if isinstance(value, dict):
        return {name: _literal(inner) for name, inner in value.items()}
    if isinstance(value, str) and "\0" in value:
        raise UserError("its config has a null byte, which no file name may have")
    if isinstance(value, (list, tuple)):
        return [_literal(inner) for inner in value]
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value
