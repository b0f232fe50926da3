"""Validation of a config before training."""

from __future__ import annotations

from functools import partial

from txl_lightning.config.lengths import encoding_kind
from txl_lightning.config.schemas import (
    Config,
    DataConfig,
    MemoryConfig,
    RecurrentModelConfig,
    TransformerXLModelConfig,
    check_logger,
    check_seed,
    flat,
    plain,
)
from txl_lightning.distributed.ranks import Ranks, n_processes
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.model.kernels import check_kernel
from txl_lightning.runs.models import architecture
from txl_lightning.training.optimization import check_optimizer
from txl_lightning.training.precision import check_accelerator

PRECISIONS = ("auto", "32-true", "64-true", "bf16-mixed", "16-mixed")


def check_config(config: Config) -> None:
    """Validate the options of a training run before anything is prepared.

    Raises:
        OptionError: an option has a value that is not allowed.
    """
    trainer, evaluation = config.trainer, config.evaluation
    check_optimizer(config.optimizer)
    segment_len = config.data.segment_len  # before memory.mem_len, which may be taken from it
    require(segment_len >= 1, "data.segment_len", segment_len, "must be an integer >= 1")
    architecture(config, vocab_size=2**31)  # any vocabulary size: the corpus is not prepared yet
    check_seed(config.seed)
    require(config.data.path is None or config.data.name == "file", "data.path", config.data.path, "needs data=file")
    cut, allowed = config.data.fractions, "needs data=file: other corpora have their own splits"
    require(config.data.name == "file" or cut == DataConfig().fractions, "data.fractions", cut, allowed)
    kept, allowed = config.checkpoint.keep_every_n_steps, "needs checkpoint.enabled=true"
    require(kept is None or config.checkpoint.enabled, "checkpoint.keep_every_n_steps", kept, allowed)
    require(config.loss in ("full", "half"), "loss", config.loss, "must be full or half")
    _check_integers(config)
    allowed = f"must be one of {', '.join(PRECISIONS)}"
    require(trainer.precision in PRECISIONS, "trainer.precision", trainer.precision, allowed)
    _check_attention(config)
    _check_compression(config)
    check_accelerator(trainer)
    B, W, chunks = config.data.batch_size, n_processes(trainer), trainer.column_chunks
    require(
        B % (W * chunks) == 0,
        "data.batch_size",
        B,
        f"must be divisible by the {W} processes of trainer.devices={trainer.devices} and "
        f"trainer.num_nodes={trainer.num_nodes}, times trainer.column_chunks={chunks}",
    )
    allowed = f"must be at least the {W} processes, a stream for each"
    require(evaluation.batch_size >= W, "evaluation.batch_size", evaluation.batch_size, allowed)
    check_logger(config.logger, ("wandb", "csv", "none"))


def _check_integers(config: Config) -> None:
    """Validate the options that are counts: at least 1, or null where that has a meaning."""
    counts = {
        "trainer": (
            *("max_steps", "devices", "num_nodes", "column_chunks", "max_nonfinite_steps", "num_threads"),
            *("log_every_n_steps", "val_every_n_steps", "val_max_segments"),
        ),
        "checkpoint": ("every_n_steps", "keep_every_n_steps"),
        "data": ("batch_size",),
        "evaluation": ("batch_size", "segment_len", "max_segments"),
    }
    for group, options in counts.items():
        for option in options:
            value = getattr(getattr(config, group), option)
            require(value is None or value >= 1, f"{group}.{option}", value, "must be an integer >= 1")


def _check_compression(config: Config) -> None:
    memory, segment_len = config.memory, config.data.segment_len
    if memory.compression is None:
        return
    for option in ("mem_len", "compressed_len"):
        value = getattr(memory, option)
        require(value >= 1, f"memory.{option}", value, "must be an integer >= 1 with memory=compressive")
    allowed = f"must divide data.segment_len={segment_len} and memory.mem_len={memory.mem_len}"
    require(segment_len % memory.rate == memory.mem_len % memory.rate == 0, "memory.rate", memory.rate, allowed)


def _check_attention(config: Config) -> None:
    kernel, model = config.trainer.attention, config.model
    check_kernel(kernel, "trainer.attention")
    if kernel != "flex":
        return
    check = partial(require, option="trainer.attention", value=kernel)
    check(isinstance(model, TransformerXLModelConfig), allowed=f"is for a Transformer-XL, not for {model.name}")
    check(config.trainer.accelerator == "gpu", allowed="trains on GPUs only; eager trains on the CPU")
    check(config.trainer.precision != "64-true", allowed="has at most 32 bits a number; eager has 64")
    drops = getattr(model, "attention_dropout", 0.0) > 0
    check(not drops, allowed="has no dropout of attention probabilities: set model.attention_dropout=0")
    resets = config.memory.reset == "document"
    check(not resets, allowed="has one mask for all streams: memory.reset=document needs eager")


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
