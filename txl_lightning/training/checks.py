"""Options of a run before anything is prepared: `auto` resolved for this machine, then validated."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter

import torch

from txl_lightning.config.lengths import encoding_kind
from txl_lightning.config.schemas import (
    Config,
    DataConfig,
    MemoryConfig,
    RecurrentModelConfig,
    TrainerConfig,
    check_logger,
    check_seed,
    flat,
    plain,
)
from txl_lightning.distributed.ranks import Ranks, n_processes
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.model.kernels import check_kernel
from txl_lightning.runs.bfloat16 import fastest_precision
from txl_lightning.runs.models import architecture
from txl_lightning.training.optimization import check_optimizer

ACCELERATORS = ("auto", "cpu", "gpu", "mps")
PRECISIONS = ("auto", "32-true", "64-true", "bf16-mixed", "16-mixed")
COUNTS = (  # at least 1, or null where that has a meaning
    *("data.segment_len", "data.batch_size", "trainer.max_steps", "trainer.devices", "trainer.num_nodes"),
    *("trainer.column_chunks", "trainer.max_nonfinite_steps", "trainer.num_threads", "trainer.log_every_n_steps"),
    *("trainer.val_every_n_steps", "trainer.val_max_segments", "checkpoint.every_n_steps"),
    *("checkpoint.keep_every_n_steps", "evaluation.batch_size", "evaluation.segment_len", "evaluation.max_segments"),
)


def resolve_machine(config: Config) -> Config:
    """Return the config with this machine's values in place of `auto`.

    `trainer.accelerator` becomes gpu, else mps for one process, else cpu; `trainer.precision` what is fastest there
    (`fastest_precision`); `optimizer.ns_precision` 32-true for Muon without mixed precision, else bf16-true.

    A resolved value is part of the run's identity: it stands in `config.yaml` and in checkpoints, and a run resumes
    with the same precisions only.
    """
    trainer, optimizer = replace(config.trainer), replace(config.optimizer)
    if trainer.accelerator == "auto":
        has_mps = torch.backends.mps.is_available() and n_processes(trainer) == 1
        trainer.accelerator = "gpu" if torch.cuda.is_available() else "mps" if has_mps else "cpu"
    if trainer.precision == "auto":
        trainer.precision = fastest_precision(trainer.accelerator)
    if optimizer.ns_precision == "auto":
        in_float32 = optimizer.name == "muon" and not trainer.precision.endswith("-mixed")
        optimizer.ns_precision = "32-true" if in_float32 else "bf16-true"
    return replace(config, trainer=trainer, optimizer=optimizer)


def check_config(config: Config) -> None:
    """Validate the options of a training run before anything is prepared.

    Raises:
        OptionError: an option has a value that is not allowed.
    """
    data, trainer = config.data, config.trainer
    for option in COUNTS:  # before the model, whose memory may take its length from data.segment_len
        value = attrgetter(option)(config)
        require(value is None or value >= 1, option, value, "must be an integer >= 1")
    check_optimizer(config.optimizer)
    architecture(config, vocab_size=2**31)  # any vocabulary size: the corpus is not prepared yet
    check_seed(config.seed)
    check_logger(config.logger, ("wandb", "csv", "none"))
    check_kernel(trainer.attention, "trainer.attention")
    is_file, keeps = data.name == "file", config.checkpoint.keep_every_n_steps is not None
    W, chunks = n_processes(trainer), trainer.column_chunks
    processes = f"the {W} processes of trainer.devices={trainer.devices} and trainer.num_nodes={trainer.num_nodes}"
    rules = {  # option: whether its value is allowed, which are
        "data.path": (is_file or data.path is None, "needs data=file"),
        "data.fractions": (is_file or data.fractions == DataConfig().fractions, "needs data=file"),
        "checkpoint.keep_every_n_steps": (config.checkpoint.enabled or not keeps, "needs checkpoint.enabled=true"),
        "loss": (config.loss in ("full", "half"), "must be full or half"),
        "trainer.precision": (trainer.precision in PRECISIONS, f"must be one of {', '.join(PRECISIONS)}"),
        "trainer.accelerator": (trainer.accelerator in ACCELERATORS, f"must be one of {', '.join(ACCELERATORS)}"),
        "data.batch_size": (
            data.batch_size % (W * chunks) == 0,
            f"must be divisible by {processes}, times trainer.column_chunks={chunks}",
        ),
        "evaluation.batch_size": (
            config.evaluation.batch_size >= W,
            f"must be at least the {W} processes",
        ),
    }
    for option, (is_allowed, allowed) in rules.items():
        require(is_allowed, option, attrgetter(option)(config), allowed)
    _check_accelerator(trainer)
    _check_compression(config)
    if trainer.attention == "flex":
        _check_flex(config)


def _check_accelerator(trainer: TrainerConfig) -> None:
    name, precision, n_gpus = trainer.accelerator, trainer.precision, torch.cuda.device_count()
    half_on_cpu = precision == "16-mixed" and name == "cpu"
    require(not half_on_cpu, "trainer.precision", precision, "needs a GPU (bf16-mixed works without one)")
    visible = f"{n_gpus} GPUs are visible and trainer.devices={trainer.devices}"
    require(name != "gpu" or n_gpus >= trainer.devices, "trainer.accelerator", name, visible)
    if name == "mps":
        require(torch.backends.mps.is_available(), "trainer.accelerator", name, "this machine has no Apple GPU")
        allowed = f"is one device: trainer.devices={trainer.devices} trainer.num_nodes={trainer.num_nodes} must be 1"
        require(n_processes(trainer) == 1, "trainer.accelerator", name, allowed)
        require(precision == "32-true", "trainer.precision", precision, "must be 32-true with trainer.accelerator=mps")


def _check_compression(config: Config) -> None:
    memory, segment_len = config.memory, config.data.segment_len
    if memory.compression is None:
        return
    for option in ("mem_len", "compressed_len"):
        value = getattr(memory, option)
        require(value >= 1, f"memory.{option}", value, "must be an integer >= 1 with memory=compressive")
    allowed = f"must divide data.segment_len={segment_len} and memory.mem_len={memory.mem_len}"
    require(segment_len % memory.rate == memory.mem_len % memory.rate == 0, "memory.rate", memory.rate, allowed)


def _check_flex(config: Config) -> None:
    drops = getattr(config.model, "attention_dropout", 0.0) > 0
    rules = {
        "trains on GPUs only; eager trains on the CPU": config.trainer.accelerator == "gpu",
        "has at most 32 bits a number; eager has 64": config.trainer.precision != "64-true",
        "has no dropout of attention probabilities: set model.attention_dropout=0": not drops,
        "has one mask for all streams: memory.reset=document needs eager": config.memory.reset != "document",
    }
    for allowed, is_allowed in rules.items():
        require(is_allowed, "trainer.attention", "flex", allowed)


def check_same_on_all_ranks(config: Config, ranks: Ranks) -> None:
    """Check that all ranks were started with equal options; otherwise they would train different models.

    Raises:
        OptionError: this rank has another option than rank 0; names the first one.
        UserError: another rank has.
    """
    ours, theirs = flat(plain(config)), flat(ranks.first(plain(config)))
    different = [name for name in sorted(ours.keys() | theirs.keys()) if ours.get(name) != theirs.get(name)]
    failed = ranks.largest(bool(different))
    if different:
        name = different[0]
        raise OptionError(name, ours.get(name), f"must be {theirs.get(name)}, as on rank 0 (this is rank {ranks.rank})")
    if failed:
        raise UserError("another rank was started with different options")


def options_without_effect(config: Config) -> list[str]:
    """Return a sentence for every option that is not read and has another value than its default.

    They are allowed, because a multirun combines options that do not all belong together.
    """
    memory, data, encoding, kind = config.memory, config.data, config.encoding, encoding_kind(config)
    recurrent, resumed = isinstance(config.model, RecurrentModelConfig), config.resume not in (None, "auto")
    no_attention = f"model={config.model.name} has no attention"
    no_states = no_attention if recurrent else "there is no memory" if memory.mem_len == 0 else None
    no_compression = None if memory.compression else "only memory=compressive compresses states"
    no_table = no_attention if recurrent else None if kind.table else f"encoding={encoding.name} has no table"
    other_corpus = None if data.name == "enwik8" else "it is for data=enwik8"
    # The other corpora have a default in conf/data, which says what their documents are.
    never_reset = "only memory.reset=document reads it" if data.name == "file" and memory.reset == "never" else None
    options = (
        # option, value, default, why it is not read (None if it is)
        ("encoding", encoding.name, "relative", no_attention if recurrent else None),
        ("encoding.table_len", encoding.table_len, None, no_table),
        ("encoding.interpolation", encoding.interpolation, 1.0, no_attention if recurrent else None),
        ("memory.start", memory.start, MemoryConfig.start, no_states),
        ("memory.rate", memory.rate, MemoryConfig.rate, no_compression),
        ("memory.compression_loss", memory.compression_loss, MemoryConfig.compression_loss, no_compression),
        ("data.newlines", data.newlines, DataConfig.newlines, other_corpus),
        ("data.document_start", data.document_start, None, never_reset),
        ("initial_weights", config.initial_weights, None, "resume has weights too" if resumed else None),
    )
    return [
        f"{option}={value} has no effect: {reason}"
        for option, value, default, reason in options
        if reason and value != default
    ]
