"""What of a configuration can be refused before anything is trained, and what a checkpoint must be to go on from."""

from __future__ import annotations

from typing import Any

import torch

from txl_lightning.config.schemas import Config, check_logger, from_plain, plain
from txl_lightning.data.vocabulary.symbols import Vocabulary
from txl_lightning.distributed.ranks import Ranks, n_processes
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.runs.models import Model, architecture
from txl_lightning.runs.trained import model_weights
from txl_lightning.training.optimization import check_optimizer

NOT_THE_FUNCTION = {
    *("dropout", "attention_dropout", "hidden_dropout", "weight_dropout"),
    *("mem_len", "same_length", "clamp_len", "ext_len", "memory_start", "vocab_size"),
}
SAME_GROUPS = ("data", "model", "encoding", "memory", "optimizer")  # what makes a run this one and no other
SAME_OPTIONS = ["loss", "trainer.precision"]
FREE_OPTIONS = ("data.root", "data.path", "data.cache_dir", "model.name")
PRECISIONS = ("32-true", "64-true", "bf16-mixed", "16-mixed")


def check_options(config: Config) -> None:
    """Refuse what no later stage would name as clearly."""
    trainer, evaluation = config.trainer, config.evaluation
    check_optimizer(config.optimizer)
    architecture(config, vocab_size=2**31)  # before a large corpus is prepared
    require(config.seed >= 0, "seed", config.seed, "must be an integer >= 0")
    require(config.loss in ("full", "half"), "loss", config.loss, "must be full or half")
    require(trainer.max_steps >= 1, "trainer.max_steps", trainer.max_steps, "must be an integer >= 1")
    require(
        trainer.precision in PRECISIONS,
        "trainer.precision",
        trainer.precision,
        f"must be one of {', '.join(PRECISIONS)}",
    )
    require(trainer.accelerator in ("cpu", "gpu"), "trainer.accelerator", trainer.accelerator, "must be cpu or gpu")
    half_on_cpu = trainer.precision == "16-mixed" and trainer.accelerator == "cpu"
    require(not half_on_cpu, "trainer.precision", trainer.precision, "needs a GPU (bf16-mixed works without one)")
    for option in ("devices", "num_nodes", "column_chunks", "max_nonfinite_steps"):
        value = getattr(trainer, option)
        require(value >= 1, f"trainer.{option}", value, "must be an integer >= 1")
    n_gpus = torch.cuda.device_count()
    require(
        trainer.accelerator == "cpu" or n_gpus >= trainer.devices,
        "trainer.accelerator",
        trainer.accelerator,
        f"{n_gpus} GPUs are visible and trainer.devices={trainer.devices}",
    )
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
        "data.batch_size": config.data.batch_size,
        "data.segment_len": config.data.segment_len,
        "evaluation.batch_size": evaluation.batch_size,
        "evaluation.segment_len": evaluation.segment_len,
        "evaluation.max_segments": evaluation.max_segments,
    }.items():
        require(value is None or value >= 1, option, value, "must be an integer >= 1")
    check_logger(config.logger, ("wandb", "csv", "none"))


def check_same_everywhere(config: Config, ranks: Ranks) -> None:
    """Refuse ranks that were started with different options: they would train different models as if they were one.

    Raises:
        OptionError: naming the first option that differs from the first rank's.
    """
    ours, theirs = flat(plain(config)), flat(ranks.first(plain(config)))
    different = [name for name in sorted(ours.keys() | theirs.keys()) if ours.get(name) != theirs.get(name)]
    failed = ranks.largest(bool(different))
    if different:
        name = different[0]
        raise OptionError(name, ours.get(name), f"must be {theirs.get(name)}, as on rank 0 (this is rank {ranks.rank})")
    if failed:
        raise UserError("another rank was started with other options")


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested configuration by dotted names."""
    items: dict[str, Any] = {}
    for name, value in values.items():
        items |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return items


def check_weights(
    path: str | None, option: str, checkpoint: dict[str, Any], model: Model, vocabulary: Vocabulary
) -> dict[str, torch.Tensor]:
    """The weights of a checkpoint under the model's own names.

    Raises:
        OptionError: they are of another architecture or were trained on another vocabulary.
    """
    record = checkpoint["txl_lightning"]
    theirs = architecture(from_plain(record["config"]), len(vocabulary))
    for name, value in vars(theirs).items():
        if name in NOT_THE_FUNCTION or not hasattr(model.config, name):
            continue
        if value != getattr(model.config, name):
            needed = getattr(model.config, name)
            raise OptionError(option, path, f"is of another model: {name} is {value}, this model needs {needed}")
    if Vocabulary.from_state_dict(record["vocabulary"]) != vocabulary:
        raise OptionError(option, path, "was trained on another vocabulary than this corpus has")
    weights = model_weights(checkpoint)
    has = {name: list(tensor.shape) for name, tensor in weights.items()}
    needs = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    for name in sorted(has.keys() | needs.keys()):
        if has.get(name) != needs.get(name):
            shapes = f"{name} is {has.get(name, 'absent')}, this model needs {needs.get(name, 'none')}"
            raise OptionError(option, path, f"is of another model: {shapes}")
    return weights


def check_same_run(config: Config, path: str, checkpoint: dict[str, Any], corpus: str) -> None:
    """Refuse to go on with a run whose model, corpus, streams, memory, loss, precision or optimiser were others.

    Raises:
        OptionError: naming the first option that differs, or that the file holds weights only.
    """
    if "pytorch-lightning_version" not in checkpoint:
        raise OptionError("resume", path, "holds weights only: start from them with initial_weights=")
    record = checkpoint["txl_lightning"]
    before, now = flat(record["config"]), flat(plain(config))
    fixed = [name for group in SAME_GROUPS for name in now if name.startswith(f"{group}.")] + SAME_OPTIONS
    for name in fixed:
        if name not in FREE_OPTIONS and name in before and before[name] != now[name]:
            option = name.removesuffix(".name") if name.count(".") == 1 else name
            raise OptionError(option, now[name], f"must be {before[name]}, as in resume={path}")
    if record.get("corpus", corpus) != corpus:
        raise OptionError("resume", path, "was trained on another text than this corpus has now")
