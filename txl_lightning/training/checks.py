"""Validation of a config before training and of a checkpoint before resuming."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from txl_lightning.config.schemas import (
    Config,
    DataConfig,
    TransformerXLModelConfig,
    check_logger,
    check_seed,
    flat,
    from_plain,
    plain,
)
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.distributed.ranks import Ranks, n_processes
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.model.config import LENGTHS
from txl_lightning.model.kernels.choice import check_kernel
from txl_lightning.runs.models import Model, architecture
from txl_lightning.runs.trained import model_weights
from txl_lightning.runs.vocabulary_change import keep_known_tokens
from txl_lightning.training.optimization import check_optimizer
from txl_lightning.training.precision import check_accelerator

NON_ARCHITECTURE_FIELDS = {  # may differ between a checkpoint and the model that takes its weights
    *("dropout", "attention_dropout", "hidden_dropout", "weight_dropout", "init_std"),
    *LENGTHS,
    "vocab_size",
}
# A resumed run must have the options of the checkpoint's run, but for where the files of the corpus are. An option that
# an older checkpoint lacks has its default there. `memory.segments` only gives `memory.mem_len` its value.
FIXED_GROUPS = ("data", "model", "encoding", "memory", "optimizer")
FIXED_OPTIONS = ["seed", "loss", "trainer.precision"]
FREE_OPTIONS = ("data.root", "data.path", "data.tokenizer", "data.cache_dir", "model.name", "memory.segments")
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
    require(trainer.max_steps >= 1, "trainer.max_steps", trainer.max_steps, "must be an integer >= 1")
    require(
        trainer.precision in PRECISIONS,
        "trainer.precision",
        trainer.precision,
        f"must be one of {', '.join(PRECISIONS)}",
    )
    for option in ("devices", "num_nodes", "column_chunks", "max_nonfinite_steps"):
        value = getattr(trainer, option)
        require(value >= 1, f"trainer.{option}", value, "must be an integer >= 1")
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
    require(
        trainer.num_threads is None or trainer.num_threads >= 1,
        "trainer.num_threads",
        trainer.num_threads,
        "must be null or an integer >= 1",
    )
    for option, value in {
        "trainer.log_every_n_steps": trainer.log_every_n_steps,
        "trainer.val_every_n_steps": trainer.val_every_n_steps,
        "trainer.val_max_segments": trainer.val_max_segments,
        "checkpoint.every_n_steps": config.checkpoint.every_n_steps,
        "checkpoint.keep_every_n_steps": config.checkpoint.keep_every_n_steps,
        "data.batch_size": config.data.batch_size,
        "evaluation.batch_size": evaluation.batch_size,
        "evaluation.segment_len": evaluation.segment_len,
        "evaluation.max_segments": evaluation.max_segments,
    }.items():
        require(value is None or value >= 1, option, value, "must be an integer >= 1")
    check_logger(config.logger, ("wandb", "csv", "none"))


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
    if kernel not in ("flex", "triton"):
        return
    check = partial(require, option="trainer.attention", value=kernel)
    check(isinstance(model, TransformerXLModelConfig), allowed=f"is for a Transformer-XL, not for {model.name}")
    check(config.trainer.accelerator == "gpu", allowed="trains on GPUs only; eager trains on the CPU")
    check(config.trainer.precision != "64-true", allowed="has at most 32 bits a number; eager has 64")
    drops = kernel == "flex" and getattr(model, "attention_dropout", 0.0) > 0
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


def check_weights(
    path: str | None, option: str, checkpoint: dict[str, Any], model: Model, vocabulary: Vocabulary
) -> dict[str, torch.Tensor]:
    """Return the weights of a checkpoint under the names of the model.

    Initial weights may be of another vocabulary: known tokens keep their rows, new ones have those of `model`.

    Args:
        path: path of the checkpoint, for messages.
        option: option that named it: `resume` or `initial_weights`.
        checkpoint: contents of the checkpoint.
        model: model that takes the weights.
        vocabulary: vocabulary of the corpus.

    Raises:
        OptionError: the checkpoint has another architecture, or a vocabulary that cannot be used.
    """
    record = checkpoint["txl_lightning"]
    theirs = architecture(from_plain(record["config"]), len(vocabulary))
    for name, value in vars(theirs).items():
        if name in NON_ARCHITECTURE_FIELDS or not hasattr(model.config, name):
            continue
        if value != getattr(model.config, name):
            needed = getattr(model.config, name)
            raise OptionError(option, path, f"is of another model: {name} is {value}, this model needs {needed}")
    weights = model_weights(checkpoint)
    trained_on = Vocabulary.from_state_dict(record["vocabulary"])
    if trained_on != vocabulary:
        require(option != "resume", option, path, "was trained on another vocabulary than this corpus has")
        try:
            weights = keep_known_tokens(weights, trained_on, vocabulary, model)
        except UserError as error:
            raise OptionError(option, path, str(error)) from error
    has = {name: list(tensor.shape) for name, tensor in weights.items()}
    needs = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    for name in sorted(has.keys() | needs.keys()):
        if has.get(name) != needs.get(name):
            shapes = f"{name} is {has.get(name, 'absent')}, this model needs {needs.get(name, 'none')}"
            raise OptionError(option, path, f"is of another model: {shapes}")
    return weights


def check_same_run(config: Config, path: str, checkpoint: dict[str, Any], corpus: str) -> None:
    """Check that a checkpoint is of a run with the same model, corpus, streams, memory, loss, precision and optimizer.

    Raises:
        OptionError: an option differs (names the first one), or the file holds weights only.
    """
    if "pytorch-lightning_version" not in checkpoint:
        raise OptionError("resume", path, "holds weights only: start from them with initial_weights=")
    record = checkpoint["txl_lightning"]
    before, now = flat(plain(from_plain(record["config"]))), flat(plain(config))
    fixed = [name for group in FIXED_GROUPS for name in now if name.startswith(f"{group}.")] + FIXED_OPTIONS
    without_effect = () if config.memory.reset == "document" else ("data.document_start",)
    for name in fixed:
        if name not in (*FREE_OPTIONS, *without_effect) and name in before and before[name] != now[name]:
            option = name.removesuffix(".name") if name.count(".") == 1 else name
            raise OptionError(option, now[name], f"must be {before[name]}, as in resume={path}")
    if record.get("corpus", corpus) != corpus:
        raise OptionError("resume", path, "was trained on another text than this corpus has now")
