"""Options of a run: `auto` resolved for this machine, and all validated before anything is prepared."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from operator import attrgetter

import torch
from lightning.fabric.plugins.environments import SLURMEnvironment

from txl_lightning.config.schemas import (
    WITHOUT_PATH,
    Config,
    MemoryConfig,
    RecurrentModelConfig,
    check_logger,
    check_seed,
    check_values,
    flat,
    plain,
)
from txl_lightning.distributed.ranks import Ranks, environment, n_processes
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.runs.models import architecture
from txl_lightning.runs.threads_and_precision import fastest_precision


def resolve_accelerator(config: Config) -> Config:
    """Return the config with gpu, else mps for one process, else cpu in place of `trainer.accelerator=auto`."""
    trainer = config.trainer
    if trainer.accelerator != "auto":
        return config
    has_mps = torch.backends.mps.is_available() and n_processes(trainer) == 1
    accelerator = "gpu" if torch.cuda.is_available() else "mps" if has_mps else "cpu"
    return replace(config, trainer=replace(trainer, accelerator=accelerator))


def resolve_precision(config: Config, resumed: Config | None = None) -> Config:
    """Return the config with number types in place of `auto`, its accelerator being resolved.

    `trainer.precision` becomes what is fastest on this machine (`fastest_precision`), and `optimizer.ns_precision`
    32-true for Muon without mixed precision, else bf16-true. Both are part of the run's identity: they stand in
    `config.yaml` and in checkpoints, and a resumed run keeps them.

    Args:
        config: config of the run.
        resumed: config of the checkpoint that the run resumes from.
    """
    trainer, optimizer = replace(config.trainer), replace(config.optimizer)
    if trainer.precision == "auto":
        trainer.precision = resumed.trainer.precision if resumed else fastest_precision(trainer.accelerator)
    if optimizer.ns_precision == "auto":
        in_float32 = optimizer.name == "muon" and not trainer.precision.endswith("-mixed")
        fitting = "32-true" if in_float32 else "bf16-true"
        optimizer.ns_precision = resumed.optimizer.ns_precision if resumed else fitting
    return replace(config, trainer=trainer, optimizer=optimizer)


def check_config(config: Config) -> None:
    """Validate the options of a training run before anything is prepared.

    Raises:
        OptionError: an option has a value that is not allowed.
    """
    check_values(config)  # before the model, whose memory may take its length from data.segment_len
    architecture(config, vocab_size=2**31)  # any vocabulary size: the corpus is not prepared yet
    check_seed(config.seed)
    check_logger(config.logger, ("wandb", "csv", "lightning", "tensorboard", "none"))
    target, arguments, names = config.logger._target_, config.logger.arguments, {*config.logger.names}
    require(target is None or "lightning" in names, "logger._target_", target, "is of logger=lightning")
    require(not arguments or bool(names - {"wandb", "none"}), "logger.arguments", arguments, "is of logger=lightning")
    for option, is_allowed, allowed in _rules(config):
        require(is_allowed, option, attrgetter(option)(config), allowed)


def _rules(config: Config) -> list[tuple[str, bool, str]]:
    """Return options, whether their values are allowed, and which are."""
    data, memory, trainer, checkpoint = config.data, config.memory, config.trainer, config.checkpoint
    optimizer, exact = config.optimizer, config.optimizer.ns_precision == "32-true"
    accelerator, precision, W = trainer.accelerator, trainer.precision, n_processes(trainer)
    n_gpus = torch.cuda.device_count()
    if n_gpus == 1 and isinstance(environment(), SLURMEnvironment):  # --gpus-per-task=1 shows each process its own
        n_gpus = trainer.devices
    kept, groups = checkpoint.keep_every_n_steps, trainer.stream_groups
    processes = f"trainer.devices={trainer.devices} and trainer.num_nodes={trainer.num_nodes}"
    enough = f"must be at least the {W} processes of {processes}, times trainer.stream_groups={groups}"
    visible = f"{n_gpus} GPUs are visible and trainer.devices={trainer.devices}"
    k, recurrent = memory.gradient_segments, isinstance(config.model, RecurrentModelConfig)
    longer = f"must be 0: {config.model.name} stores no states; a longer data.segment_len does the same"
    rules = [
        ("data.batch_size", data.batch_size >= W * groups, enough),
        ("evaluation.batch_size", config.evaluation.batch_size >= W, f"must be at least the {W} processes"),
        ("checkpoint.keep_every_n_steps", checkpoint.enabled or kept is None, "needs checkpoint.enabled=true"),
        ("memory.gradient_segments", not (k and recurrent), longer),
        ("optimizer.min_lr", optimizer.min_lr <= optimizer.lr, "must be between 0 and optimizer.lr"),
        ("optimizer.ns_precision", not exact or optimizer.name == "muon", "is for optimizer=muon only"),
        ("trainer.accelerator", accelerator != "gpu" or n_gpus >= trainer.devices, visible),
    ]
    if trainer.kernel == "relative":
        rules += [
            ("trainer.kernel", not recurrent, f"must be sdpa: model={config.model.name} has no attention"),
            ("trainer.kernel", not config.beyond, "must be sdpa with beyond: a variant may attend in its own way"),
            ("trainer.kernel", accelerator in ("gpu", "auto"), "needs trainer.accelerator=gpu"),
            ("trainer.kernel", precision != "64-true", "computes in float32 at most: trainer.precision=32-true"),
            ("trainer.kernel", find_spec("triton") is not None, "needs Triton, which torch for CUDA brings"),
        ]
    if accelerator == "cpu":
        rules += [("trainer.precision", precision != "16-mixed", "needs a GPU (bf16-mixed works without one)")]
    if accelerator == "mps":
        rules += [
            ("trainer.accelerator", torch.backends.mps.is_available(), "this machine has no Apple GPU"),
            ("trainer.accelerator", W == 1, f"is one device: {processes} must be 1"),
            ("trainer.precision", precision in ("32-true", "auto"), "must be 32-true with trainer.accelerator=mps"),
        ]
    return rules


def why_no_graph(config: Config) -> str | None:
    """Return why the steps of a training are not replayed; None if they are."""
    trainer = config.trainer
    reasons = {
        "only a compiled step is captured: trainer.compile=true": not trainer.compile,
        "it is for trainer.accelerator=gpu": trainer.accelerator not in ("gpu", "auto"),
        "trainer.callbacks may read what a replay overwrites": bool(trainer.callbacks),
        "trainer.stream_groups have several backward passes in a step": trainer.stream_groups > 1,
        "memory.gradient_segments have several forward passes in a step": config.memory.gradient_segments > 0,
        "several processes average gradients during the backward pass": n_processes(trainer) > 1,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def check_same_on_all_ranks(config: Config, ranks: Ranks) -> None:
    """Check that all ranks were started with equal options; otherwise they would train different models.

    Raises:
        OptionError: this rank has another option than rank 0; names the outermost.
        UserError: another rank has.
    """
    ours, theirs = flat(plain(config)), flat(ranks.first(plain(config)))
    different = [name for name in sorted(ours.keys() | theirs.keys()) if ours.get(name) != theirs.get(name)]
    failed = ranks.largest(bool(different))
    if different:
        name = min(different, key=lambda name: name.count("."))  # others may follow it, as `data.seed` does `seed`
        raise OptionError(name, ours.get(name), f"must be {theirs.get(name)}, as on rank 0 (this is rank {ranks.rank})")
    if failed:
        raise UserError("another rank was started with different options")


def options_without_effect(config: Config) -> list[str]:
    """Return a sentence for every option that is not read and has another value than its default.

    They are allowed, because a multirun combines options that do not all belong together.
    """
    memory, data, encoding = config.memory, config.data, config.encoding
    recurrent, resumed = isinstance(config.model, RecurrentModelConfig), config.resume not in WITHOUT_PATH
    no_attention = f"model={config.model.name} has no attention"
    no_states = no_attention if recurrent else "there is no memory" if memory.mem_len == 0 else None
    # The other corpora have a default in conf/data, which says what their documents are.
    never_reset = "only memory.reset=document reads it" if data.name == "file" and memory.reset == "never" else None
    options = (
        # option, value, default, why it is not read (None if it is)
        ("encoding", encoding.name, "relative", no_attention if recurrent else None),
        ("memory.start", memory.start, MemoryConfig.start, no_states),
        ("data.document_start", data.document_start, None, never_reset),
        ("trainer.graph", "true" if config.trainer.graph else None, None, why_no_graph(config)),
        ("initial_weights", config.initial_weights, None, "resume has weights too" if resumed else None),
    )
    return [
        f"{option}={value} has no effect: {reason}"
        for option, value, default, reason in options
        if reason and value != default
    ]
