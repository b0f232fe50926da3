"""One run from its configuration: train, evaluate, write everything into the run directory."""

from __future__ import annotations

import json
import logging
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, Logger, WandbLogger
from omegaconf import OmegaConf

from txl_lightning.config import Config, architecture, evaluation_lengths, extended_context, from_plain, plain
from txl_lightning.data.datamodule import StreamsDataModule
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.errors import OptionError, require
from txl_lightning.training.callbacks import ProgressBar, RandomState, RunRecord, TrainingCurves, ValidationCurve
from txl_lightning.training.checkpoints import model_weights, read_checkpoint
from txl_lightning.training.models import Model, make_model
from txl_lightning.training.module import LanguageModelModule
from txl_lightning.training.optimization import check_optimizer

NOT_THE_FUNCTION = {
    *("dropout", "attention_dropout", "hidden_dropout", "weight_dropout"),
    *("mem_len", "same_length", "clamp_len", "ext_len", "memory_start", "vocab_size"),
}
PRECISIONS = ("32-true", "64-true", "bf16-mixed", "16-mixed")


def train(config: Config, directory: Path) -> dict[str, Any]:
    """Train one model and evaluate its best weights on the validation and the test split.

    Writes `config.yaml`, `validation.jsonl`, `metrics.json`, `checkpoints/last.ckpt` and `best.ckpt`, and
    the logger's files into `directory`.

    Returns:
        What `metrics.json` holds.

    Raises:
        UserError: an option, the corpus or the checkpoint to resume from is not usable.
    """
    check_options(config)
    resume = None if config.resume is None else read_checkpoint(config.resume, option="resume")
    L.seed_everything(config.seed, verbose=False)
    if config.trainer.num_threads is not None:
        torch.set_num_threads(config.trainer.num_threads)

    data = StreamsDataModule(config.data, config.evaluation, extended_context(config))
    vocabulary = data.corpus.vocabulary
    model = make_model(config, len(vocabulary))
    lengths = evaluation_lengths(config)
    try:
        model.with_lengths(**lengths)
    except OptionError as error:
        raise error.within("evaluation") from error
    if resume is not None:
        check_same_run(config, resume)
        check_weights(config.resume, "resume", resume, model, vocabulary)
        left = config.trainer.max_steps - resume["global_step"]
        allowed = f"must be greater than the {resume['global_step']} steps of resume={config.resume}"
        require(left > 0, "trainer.max_steps", config.trainer.max_steps, allowed)
    elif config.initial_weights is not None:
        initial = read_checkpoint(config.initial_weights, option="initial_weights")
        model.load_state_dict(check_weights(config.initial_weights, "initial_weights", initial, model, vocabulary))
    module = LanguageModelModule(
        model,
        config.optimizer,
        config.trainer.max_steps,
        level=vocabulary.level,
        evaluation_lengths=lengths,
        fused=config.trainer.precision != "16-mixed",
        compile=config.trainer.compile,
        loss=config.loss,
    )

    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(plain(config))))
    curves = TrainingCurves(config.trainer.log_every_n_steps)
    checkpoints = make_checkpoints(config, directory) if config.checkpoint.enabled else []
    callbacks: list[Callback] = [
        curves,
        ValidationCurve(directory / "validation.jsonl", curves),
        RandomState(),
        RunRecord(plain(config), vocabulary.state_dict()),
        *checkpoints,
    ]
    if config.trainer.progress_bar:
        callbacks.append(ProgressBar(curves))
    started = time.perf_counter()
    with quiet_libraries():
        logger = make_logger(config, directory, n_parameters=sum(p.numel() for p in model.parameters()))
        trainer = make_trainer(config, directory, callbacks, logger)
        trainer.fit(module, datamodule=data, ckpt_path=config.resume, weights_only=True)
        if config.checkpoint.enabled:
            trainer.save_checkpoint(directory / "checkpoints" / "last.ckpt")
        seconds = time.perf_counter() - started
        metrics: dict[str, Any] = {"steps": trainer.global_step, "tokens": curves.tokens, "seconds": round(seconds, 2)}
        best = checkpoints[0].best_model_path if checkpoints else ""
        if best:
            module.load_state_dict(read_checkpoint(best)["state_dict"])
        metrics |= {"weights": "best" if best else "last"} | evaluate_splits(
            trainer, module, data, config.evaluation.max_segments
        )
    metrics["evaluation"] = {
        **lengths,
        "segment_len": config.evaluation.segment_len,
        "streams_start": "without context",
    }
    metrics["evaluation"] |= {n: getattr(config.evaluation, n) for n in ("batch_size", "max_segments")}
    metrics["corpus"] = {"name": data.corpus.name, "level": vocabulary.level, "sha256": data.corpus.checksum}
    metrics["parameters"] = sum(p.numel() for p in model.parameters())
    if trainer.is_global_zero:
        (directory / "metrics.json").write_text(json.dumps(metrics, indent=2, allow_nan=False) + "\n")
        if isinstance(logger, WandbLogger):
            logger.experiment.finish()
    return metrics


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
    n_gpus = torch.cuda.device_count()
    require(
        trainer.accelerator == "cpu" or n_gpus >= trainer.devices,
        "trainer.accelerator",
        trainer.accelerator,
        f"{n_gpus} GPUs are visible and trainer.devices={trainer.devices}",
    )
    require(
        trainer.devices == 1, "trainer.devices", trainer.devices, "must be 1 (several devices are not supported yet)"
    )
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
    names = ("wandb", "csv", "none")
    require(config.logger.name in names, "logger", config.logger.name, f"must be one of {', '.join(names)}")
    modes = ("offline", "online")
    require(config.logger.mode in modes, "logger.mode", config.logger.mode, f"must be one of {', '.join(modes)}")


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


def check_same_run(config: Config, checkpoint: dict[str, Any]) -> None:
    """Refuse to go on with a run whose streams, memory, loss or optimiser were others.

    Raises:
        OptionError: naming the first option that differs, or that the file holds weights only.
    """
    if "pytorch-lightning_version" not in checkpoint:
        raise OptionError("resume", config.resume, "holds weights only: start from them with initial_weights=")
    before, now = from_plain(checkpoint["txl_lightning"]["config"]), config
    fixed = {"data": ("name", "level", "batch_size", "segment_len"), "memory": ("mem_len", "start"), "optimizer": ()}
    for group, names in fixed.items():
        for name in names or vars(now.optimizer):
            theirs, ours = (getattr(getattr(c, group), name) for c in (before, now))
            if theirs != ours:
                raise OptionError(f"{group}.{name}", ours, f"must be {theirs}, as in resume={config.resume}")
    require(before.loss == now.loss, "loss", now.loss, f"must be {before.loss}, as in resume={config.resume}")


def make_checkpoints(config: Config, directory: Path) -> list[ModelCheckpoint]:
    """`best.ckpt` by validation loss and `last.ckpt` every n steps and at the end."""
    common: dict[str, Any] = {"dirpath": directory / "checkpoints", "enable_version_counter": False}
    best = ModelCheckpoint(monitor="val/nll", filename="best", save_top_k=1, auto_insert_metric_name=False, **common)
    last = ModelCheckpoint(
        filename="last",
        every_n_train_steps=config.checkpoint.every_n_steps,
        save_on_exception=True,
        **common,
    )
    return [best, last]


def make_logger(config: Config, directory: Path, n_parameters: int) -> Logger | bool:
    """The chosen logger, knowing the whole configuration."""
    if config.logger.name == "csv":
        return CSVLogger(save_dir=directory, name=None, version="")
    if config.logger.name == "none":
        return False
    import wandb

    run = wandb.init(
        dir=directory,
        project=config.logger.project,
        group=config.logger.group,
        tags=config.logger.tags,
        mode=config.logger.mode,  # type: ignore[arg-type]
        config={**plain(config), "parameters": n_parameters},
        settings=wandb.Settings(silent=True, console="off", disable_git=True),
    )
    for metric in ("val/nll", "val/bpc", "val/ppl"):
        run.define_metric(metric, step_metric="trainer/global_step", summary="min")
    return WandbLogger(experiment=run)


def make_trainer(config: Config, directory: Path, callbacks: list[Callback], logger: Logger | bool) -> L.Trainer:
    """Lightning's trainer: ordered streams (no sampler of its own), validation in mid-epoch."""
    options = config.trainer
    return L.Trainer(
        accelerator=options.accelerator,
        devices=options.devices,
        precision=options.precision,  # type: ignore[arg-type]
        max_steps=options.max_steps,
        val_check_interval=options.val_every_n_steps and min(options.val_every_n_steps, options.max_steps),
        check_val_every_n_epoch=None if options.val_every_n_steps else 1,
        limit_val_batches=options.val_max_segments,
        log_every_n_steps=options.log_every_n_steps,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        enable_model_summary=False,
        enable_progress_bar=options.progress_bar,
        enable_checkpointing=config.checkpoint.enabled,
        default_root_dir=directory,
        callbacks=callbacks,
        logger=logger,
    )


def evaluate_splits(
    trainer: L.Trainer, module: LanguageModelModule, data: StreamsDataModule, max_segments: int | None
) -> dict[str, float]:
    """The module's current weights on the validation and the test split, at evaluation lengths."""
    trainer.limit_val_batches = trainer.limit_test_batches = 1.0 if max_segments is None else max_segments
    trainer.validate(module, datamodule=data, verbose=False)
    trainer.test(module, datamodule=data, verbose=False)
    return dict(module.figures)


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Without the notes that do not apply here: devices found, advertisements, unshuffled loaders without workers."""
    for name in ("lightning.pytorch", "matplotlib"):
        logging.getLogger(name).setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"lightning\.|torch\.jit", category=DeprecationWarning)
        warnings.filterwarnings("ignore", message=r".*exists and is not empty.*")
        warnings.filterwarnings("ignore", message=r".*LeafSpec.*")
        warnings.filterwarnings("ignore", message=r"The dirpath has changed.*")
        yield
