"""Options of a training run that are refused, or have no effect, before anything is prepared."""

from __future__ import annotations

from operator import attrgetter

import torch
from lightning.fabric.plugins.environments import SLURMEnvironment

from txl_lightning.config.schemas import (
    WITHOUT_PATH,
    Config,
    MemoryConfig,
    RecurrentModelConfig,
    check_logger,
    check_values,
    flat,
    plain,
)
from txl_lightning.distributed.ranks import Ranks, environment, n_processes
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.runs.models import architecture

LOGGERS = ("wandb", "csv", "lightning", "tensorboard", "none")


def options_without_effect(config: Config) -> list[str]:
    """Return a sentence for every option that is not read and has another value than its default.

    They are allowed, because a multirun combines options that do not all belong together.
    """
    memory = config.memory
    is_recurrent = isinstance(config.model, RecurrentModelConfig)
    no_attention = f"model={config.model.name} has no attention"
    sentences: list[str] = []

    def add(option: str, value: object, why: str) -> None:
        sentences.append(f"{option}={value} has no effect: {why}")

    if is_recurrent and config.encoding.name != "relative":
        add("encoding", config.encoding.name, no_attention)
    if memory.start != MemoryConfig.start and (is_recurrent or memory.mem_len == 0):
        add("memory.start", memory.start, no_attention if is_recurrent else "there is no memory")
    # The other corpora have a default in conf/data, which says what their documents are.
    if config.data.document_start is not None and config.data.name == "file" and memory.reset == "never":
        add("data.document_start", config.data.document_start, "only memory.reset=document reads it")
    if config.initial_weights is not None and config.resume not in WITHOUT_PATH:
        add("initial_weights", config.initial_weights, "resume has weights too")
    return sentences


def check_config(config: Config) -> None:
    """Validate the options of a training run before anything is prepared.

    Raises:
        OptionError: an option has a value that is not allowed.
    """
    check_values(config)  # before the model, whose memory may take its length from data.segment_len
    architecture(config, vocab_size=2**31)  # any vocabulary size: the corpus is not prepared yet
    check_logger(config.logger, LOGGERS)
    _check_logger_arguments(config)
    has_weights = config.resume not in WITHOUT_PATH or config.initial_weights is not None
    require(config.train or has_weights, "train", config.train, "needs ckpt_path=FILE, whose weights are evaluated")
    _check_sizes(config)
    _check_device(config)


def _require(config: Config, option: str, condition: bool, allowed: str) -> None:
    require(condition, option, attrgetter(option)(config), allowed)


def _check_logger_arguments(config: Config) -> None:
    logger = config.logger
    names = set(logger.names)
    is_lightning = logger._target_ is None or "lightning" in names
    _require(config, "logger._target_", is_lightning, "is of logger=lightning")
    has_others = bool(names - {"wandb", "none"})
    _require(config, "logger.arguments", not logger.arguments or has_others, "is of logger=lightning")


def _check_sizes(config: Config) -> None:
    W = n_processes(config.trainer)
    groups = config.trainer.stream_groups
    enough = f"must be at least the {W} processes of {_processes(config)}, times trainer.stream_groups={groups}"
    _require(config, "data.batch_size", config.data.batch_size >= W * groups, enough)
    enough = f"must be at least the {W} processes"
    _require(config, "evaluation.batch_size", config.evaluation.batch_size >= W, enough)
    keeps = config.checkpoint.keep_every_n_steps is not None
    can_keep = config.checkpoint.enabled or not keeps
    _require(config, "checkpoint.keep_every_n_steps", can_keep, "needs checkpoint.enabled=true")
    if isinstance(config.model, RecurrentModelConfig):
        none = f"must be 0: {config.model.name} stores no states; a longer data.segment_len does the same"
        _require(config, "memory.gradient_segments", config.memory.gradient_segments == 0, none)
    optimizer = config.optimizer
    _require(config, "optimizer.min_lr", optimizer.min_lr <= optimizer.lr, "must be between 0 and optimizer.lr")
    can_be_exact = optimizer.ns_precision != "32-true" or optimizer.name == "muon"
    _require(config, "optimizer.ns_precision", can_be_exact, "is for optimizer=muon only")


def _processes(config: Config) -> str:
    return f"trainer.devices={config.trainer.devices} and trainer.num_nodes={config.trainer.num_nodes}"


def _check_device(config: Config) -> None:
    trainer = config.trainer
    if trainer.accelerator == "gpu":
        n_gpus = torch.cuda.device_count()
        if n_gpus == 1 and isinstance(environment(), SLURMEnvironment):
            n_gpus = trainer.devices  # --gpus-per-task=1 shows each process its own
        visible = f"{n_gpus} GPUs are visible and trainer.devices={trainer.devices}"
        _require(config, "trainer.accelerator", n_gpus >= trainer.devices, visible)
    if trainer.accelerator == "cpu":
        needs = "needs a GPU (bf16-mixed works without one)"
        _require(config, "trainer.precision", trainer.precision != "16-mixed", needs)
    if trainer.accelerator == "mps":
        _require(config, "trainer.accelerator", torch.backends.mps.is_available(), "this machine has no Apple GPU")
        one = f"is one device: {_processes(config)} must be 1"
        _require(config, "trainer.accelerator", n_processes(trainer) == 1, one)
        single = "must be 32-true with trainer.accelerator=mps"
        _require(config, "trainer.precision", trainer.precision in ("32-true", "auto"), single)


def check_same_on_all_ranks(config: Config, ranks: Ranks) -> None:
    """Check that all ranks were started with equal options; otherwise they would train different models.

    Raises:
        OptionError: this rank has another option than rank 0; names the outermost.
        UserError: another rank has.
    """
    ours = flat(plain(config))
    first = flat(ranks.first(plain(config)))
    names = sorted(ours.keys() | first.keys())
    different = [name for name in names if ours.get(name) != first.get(name)]
    any_differs = ranks.largest(bool(different))
    if different:
        name = min(different, key=lambda name: name.count("."))  # others may follow it, as `data.seed` does `seed`
        raise OptionError(name, ours.get(name), f"must be {first.get(name)}, as on rank 0 (this is rank {ranks.rank})")
    if any_differs:
        raise UserError("another rank was started with different options")
