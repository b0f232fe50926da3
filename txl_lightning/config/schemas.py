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
from omegaconf.errors import ValidationError

from txl_lightning.config.architecture import (
    POSITIVE,
    ModelOptions,
    RecurrentOptions,
    TransformerXLOptions,
    option,
)
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
    """Group `model`.

    Attributes:
        name: name of the model in W&B and in tables.
    """

    name: str = MISSING


@dataclass(kw_only=True)
class TransformerXLModelConfig(TransformerXLOptions, ModelConfig):
    """Group `model` for a Transformer-XL."""


@dataclass(kw_only=True)
class RecurrentModelConfig(RecurrentOptions, ModelConfig):
    """Group `model` for a recurrent baseline."""


@dataclass
class EncodingConfig:
    """Group `encoding` (see `EncodingKind`).

    Attributes:
        name: encoding of positions, built in or registered by your file.
    """

    name: str = MISSING


@dataclass
class TableEncodingConfig(EncodingConfig):
    """Group `encoding` for one with a trained table.

    Attributes:
        table_len: rows of the trained table; null for as many as training needs. These are segment + extended context,
            and for shaw the memory too.
    """

    table_len: int | None = None


@dataclass
class MemoryConfig:
    """Group `memory`: length of the memory in training, its start and its reset.

    Attributes:
        mem_len: M, longest memory in tokens; 0 for no recurrence.
        segments: length that memory=on gives the memory, in training segments. Null in checkpoints of 0.5.
        gradient_segments: segments through whose memory the gradient flows; 0 as in the paper. With k a step of
            training reads k + 1 consecutive segments.
        start: empty, or zeros that are attended to.
        reset: never, or document to hide all that stands before the document (see `data.document_start`).
    """

    mem_len: int = MISSING
    segments: int | None = None
    gradient_segments: int = option(0, LENGTH, at_most("gradient_segments"))
    start: str = "empty"
    reset: str = "never"


@dataclass
class DataConfig:
    """Group `data`: the corpus, its level, and the training streams.

    Attributes:
        name: corpus.
        level: byte, char, word, bpe or ids, as the corpus allows.
        vocab_size: tokens of a subword vocabulary that is trained, or ids. Null for at most 2048 subwords.
        tokenizer: tokenizer.json for level=bpe; null trains one on the training split.
        min_count: symbols that occur less often in training are <unk>; null for 2 of words, 1 of characters.
        root: folder of all corpora; null for the variable TXL_DATA. It is read when the data is loaded, so that a
            checkpoint finds its corpus on another machine.
        seed: draws the order of lm1b's sentences, and the starts of the streams with random_start.
        random_start: begin the training streams at a random token of the split and wrap around its end.
        document_start: regular expression for lines that begin a document; null for files alone.
        cache_dir: folder of prepared corpora.
        batch_size: B, training streams on all processes together.
        segment_len: T, tokens of a training segment.
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

    At level ids `path` is a file of token ids or a folder of such files; `vocab_size`
    null is the largest id + 1 or the number of `names`, and `document_start` matches the whole number or name of an
    id that begins documents.

    Attributes:
        path: file, folder, pattern, a list of these, or {train: …, valid: …, test: …}. A pattern is like
            'docs/**/*.tex'. Files whose names say no split are joined and cut by `fractions`.
        column: field of a record to read; null for text or content, or for ids input_ids.
        format: format of all files; null for what their suffixes say.
        skip_bad: leave out records that cannot be read, and count them.
        fractions: shares of train, valid and test where names say no split.
        sentence_marks: marks of a sentence for a model of lm1b, as in data=lm1b.
        dtype: type of the ids in a raw file, which does not state it.
        names: file with a name for every id.
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
    """Options of `data=enwik8`.

    Attributes:
        newlines: dropped as in the paper, or kept.
    """

    newlines: str = "dropped"


@dataclass
class Lm1bData(DataConfig):
    """Options of `data=lm1b`.

    Attributes:
        sentence_marks: <S> at the start of each sentence, or at both ends as in the TensorFlow code.
    """

    sentence_marks: str = "start"


@dataclass
class RecallData(DataConfig):
    """Options of `data=recall`, a generated text.

    Attributes:
        distance: tokens back to the one that is repeated; a list of distances takes turns.
        repeats: probability that a token repeats that one.
        symbols: number of symbols that the other tokens are drawn from.
        n_tokens: tokens of the text.
        text_seed: draws the text.
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
    """Node `evaluation`: lengths of validation and test; null ones are training's, whatever `segment_len` is.

    The paper's train.py keeps the sum of memory and segment instead: give `mem_len` for that.

    Attributes:
        batch_size: streams of validation and test.
        segment_len: tokens of a segment.
        mem_len: memory in tokens; null for training's.
        ext_len: extended context in tokens; null for training's, or windows without a memory.
        same_length: whether all tokens attend to equally many keys; null for training's.
        clamp_len: larger distances are encoded like this one; null for training's, -1 for no limit.
        max_segments: segments of the final evaluation; null for the whole split.
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
    """Group `optimizer`: Adam, AdamW or Muon, linear warm-up, then cosine decay or constant, gradient clipping.

    With `_target_` the group is open for the arguments of that class, such as `optimizer.momentum=0.9`; `typed`
    gathers them in `arguments`.

    Attributes:
        name: adam, adamw or muon.
        _target_: class of another optimizer, whose arguments are options of this group.
        arguments: arguments of that class.
        lr: highest learning rate.
        betas: decay of the two moments of Adam.
        weight_decay: weight decay, relative to the learning rate.
        weight_decay_on: matrices of the layers, or all parameters.
        schedule: cosine decay to min_lr at trainer.max_steps, or constant.
        decay_after_warmup: whether the decay begins after the warm-up, not with it.
        warmup_steps: steps in which the learning rate rises from 0.
        min_lr: learning rate at the end of the decay.
        clip_norm: largest norm of the gradient; 0 for no clipping.
        ns_precision: number type in which Muon makes a matrix orthogonal: bf16-true as in torch, 32-true or auto. auto
            is bf16-true under mixed precision and 32-true otherwise.
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

    The group is open for every other argument of Lightning's Trainer, such as `trainer.limit_train_batches=3`; `typed`
    gathers them in `lightning`. The last step of a run is always validated.

    Attributes:
        max_steps: steps of the optimizer.
        accelerator: cpu, gpu, mps (Apple's GPU), or auto for the first of gpu, mps and cpu that is there.
        devices: processes on each machine, which share the global batch.
        num_nodes: machines.
        stream_groups: groups of a process's streams over which gradients are accumulated.
        precision: 32-true, bf16-mixed, 16-mixed, 64-true, or auto for the faster of the first two here.
        num_threads: CPU threads; null for as many as this size pays for.
        compile: whether forward and backward pass are compiled.
        log_every_n_steps: steps between values of the training's curves.
        val_every_n_steps: steps between validations; null for the end of every epoch.
        val_max_segments: segments of a validation during training; null for the whole split.
        progress_bar: whether the progress is shown.
        callbacks: callbacks of Lightning, each {_target_: CLASS, ARGUMENT: VALUE, …}.
        lightning: further arguments of Lightning's Trainer; give them as trainer.ARGUMENT=VALUE.
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

    Attributes:
        enabled: whether checkpoints are written.
        every_n_steps: steps between checkpoints, in addition to the checkpoints of validations.
        keep_every_n_steps: steps between weights that are kept as step{N}.ckpt; null for none.
        keep_best: number of best checkpoints that are kept as best-{N}.ckpt; null for best.ckpt alone.
    """

    enabled: bool = True
    every_n_steps: int = option(500, COUNT)
    keep_every_n_steps: int | None = option(None, COUNT)
    keep_best: int | None = option(None, COUNT)


@dataclass
class ContextCurveConfig:
    """Node `context_curve`: validation loss with exactly c tokens of context, and RECL, during training.

    Measured at 500 positions of the split in blocks; RECL on the hardest 10 %, 50 % and all of the positions.

    Attributes:
        every_n_steps: steps between curves; null for none.
        max_context: largest of the eight numbers of tokens c.
    """

    every_n_steps: int | None = option(None, COUNT)
    max_context: int = option(128, (lambda x: x >= 8, "must be an integer >= 8"))


@dataclass
class ExtrasConfig:
    """Node `extras`, as in lightning-hydra-template.

    Attributes:
        ignore_warnings: whether warnings of Python are hidden.
        enforce_tags: whether a run without tags is refused.
        print_config: whether the whole config is printed before the run.
    """

    ignore_warnings: bool = False
    enforce_tags: bool = False
    print_config: bool = False


def _of_wandb(variable: str, default: str | None) -> Any:
    return field(default_factory=lambda: os.environ.get(variable) or default)


def _mode_of_wandb() -> str:
    disabled = os.environ.get("WANDB_DISABLED", "").lower() in ("1", "true", "yes", "on")
    return os.environ.get("WANDB_MODE") or ("disabled" if disabled else "offline")


@dataclass
class LoggerConfig:
    """Group `logger`: where the curves go.

    The group is open for loggers of Lightning, such as `logger.mine={_target_: CLASS, name: curves}`; `typed` gathers
    them in `each`.

    Attributes:
        project: project in W&B (default: the variable WANDB_PROJECT).
        mode: offline, online or disabled W&B (default: the variable WANDB_MODE).
        group: group in W&B; null for the multirun's name (default: the variable WANDB_RUN_GROUP).
        tags: tags in W&B, beside the model's (default: the variable WANDB_TAGS).
        each: loggers; give them as logger.NAME={_target_: CLASS, ARGUMENT: VALUE, …}. null is W&B's.
    """

    project: str = _of_wandb("WANDB_PROJECT", "txl_lightning")
    mode: str = field(default_factory=_mode_of_wandb)
    group: str | None = _of_wandb("WANDB_RUN_GROUP", None)
    tags: list[str] = field(
        default_factory=lambda: list(filter(None, os.environ.get("WANDB_TAGS", "").split(",")))
    )
    each: dict[str, Any] = field(default_factory=dict)


@dataclass
class Config:
    """Config of one training run.

    `variant` is empty, or has the name of a variant in `txl_lightning.variants` and that variant's own options, which
    `architecture` validates. `callbacks` has callbacks of Lightning by name, each with its class as `_target_` and the
    arguments of the class.

    Attributes:
        loss: over all positions of a segment (full), its last half (half), or as many random ones (random_half). These
            are drawn without replacement for each step, the same in all streams.
        ckpt_path: checkpoint to resume, as resume.
        resume: checkpoint, auto for the last good one of the run directory, or replace a finished run.
        initial_weights: checkpoint whose weights a new run begins with.
        train: false evaluates the weights of ckpt_path.
        test: false leaves the test split unread.
        tags: tags of the run in W&B.
        task_name: folder in outputs and multirun.
        seed: draws initial weights, dropout and the starts of the streams.
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
    extras: ExtrasConfig = field(default_factory=ExtrasConfig)
    loss: str = option("full", one_of("full", "half", "random_half"))
    ckpt_path: str | None = None
    resume: str | None = None
    initial_weights: str | None = None
    train: bool = True
    test: bool = True
    tags: list[str] = field(default_factory=list)
    task_name: str = "."
    seed: int = option(1, SEED)


def check_logger(logger: LoggerConfig) -> None:
    """Raise `OptionError` for a mode that W&B does not have, and for arguments of W&B's logger."""
    given = logger.each.get("wandb")
    allowed = "has the options logger.project, logger.mode, logger.group and logger.tags"
    require(given is None, "logger.wandb", given, allowed)
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


# Open groups, and the field that gathers arguments of other libraries' classes.
OPEN_GROUPS = {
    "trainer": (TrainerConfig, "lightning"),
    "optimizer": (OptimizerConfig, "arguments"),
    "logger": (LoggerConfig, "each"),
}
# Arguments of Lightning's Trainer that are another option here.
SAME_IN_LIGHTNING = {
    "enable_checkpointing": "checkpoint.enabled",
    "enable_progress_bar": "trainer.progress_bar",
    "limit_test_batches": "evaluation.max_segments",
    "limit_val_batches": "trainer.val_max_segments",
}


def typed(config: Any) -> Any:
    """Return the dataclass of a composed config, with all interpolations resolved.

    Arguments of other libraries' classes, for which `OPEN_GROUPS` are open, are gathered in one field of the group.

    Raises:
        OptionError: such an argument was given, but no class that has it.
    """
    config = config.copy()
    OmegaConf.set_readonly(config, False)
    with open_dict(config):
        for name, (kind, gathered) in OPEN_GROUPS.items():
            if name in config:
                _gather(config[name], kind, gathered)
        if "trainer" in config:
            arguments = config.trainer.lightning
            for argument, option in SAME_IN_LIGHTNING.items():
                if argument in arguments:
                    value = arguments.pop(argument)
                    try:
                        OmegaConf.update(config, option, value)
                    except ValidationError as error:
                        allowed = f"must be of the type of {option}"
                        raise OptionError(f"trainer.{argument}", value, allowed) from error
            if "check_val_every_n_epoch" in arguments:
                config.trainer.val_every_n_steps = None
    options: Any = OmegaConf.to_object(config)
    optimizer = getattr(options, "optimizer", None)
    if optimizer is not None and optimizer._target_ is None:
        for argument, value in optimizer.arguments.items():
            allowed = "no such option without optimizer._target_=CLASS"
            raise OptionError(f"optimizer.{argument}", value, allowed)
    return options


def _gather(group: Any, kind: type, gathered: str) -> None:
    """Move the keys of a group that its dataclass does not have into one of its fields."""
    known = {option_of_group.name for option_of_group in fields(kind)}
    for argument in [key for key in group if key not in known]:
        group[gathered][argument] = group.pop(argument)


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


# Options of 0.5: old name -> new name. A group stands for its options too.
RENAMED = {
    "beyond": "variant",
    "logger.each": "logger",
}
# Old name -> what to do instead.
REMOVED = {
    "trainer.graph": "was removed: no GPU ever ran it; trainer.compile=true compiles the step",
    "data.block_len": "was removed: data.distance may be a list of distances, which take turns",
    "trainer.kernel": "was removed: set Attention.kernel (docs/gpus.md)",
    "logger.name": "was removed: logger=NAME chooses",
    "logger._target_": "is now logger.NAME._target_, with a name of your own",
    "logger.arguments": "are now options: logger.NAME.ARGUMENT=VALUE",
}


def why_refused(option: str) -> str | None:
    """Return the sentence that refuses an option of an earlier version; None for any other option."""
    for old, new in RENAMED.items():
        if option == old or option.startswith(f"{old}."):
            return f"is now {new}{option.removeprefix(old)}"
    return REMOVED.get(option)


def with_new_names(values: dict[str, Any]) -> dict[str, Any]:
    """Return the config in a checkpoint of 0.5 under the names of this version, without the options that are gone."""
    options = dict(values)
    if "beyond" in options:
        options["variant"] = options.pop("beyond")
    for old in REMOVED:
        group, _, name = old.partition(".")
        if name in options[group]:
            options[group] = {key: value for key, value in options[group].items() if key != name}
    return options


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
