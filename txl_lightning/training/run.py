"""`txl train`: a run built from its config, trained, evaluated with the best weights, its results written."""

from __future__ import annotations

import logging
import math
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins.environments import LightningEnvironment, SLURMEnvironment
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.strategies import DDPStrategy

from txl_lightning.config.lengths import evaluation_lengths, in_windows, training_lengths
from txl_lightning.config.schemas import (
    WITHOUT_PATH,
    Config,
    MemoryConfig,
    RecurrentModelConfig,
    check_logger,
    check_values,
    flat,
    from_plain,
    plain,
    stored,
)
from txl_lightning.data.corpus import Corpus
from txl_lightning.data.datamodule import StreamsDataModule
from txl_lightning.data.vocabulary import KEPT_LEVELS, Vocabulary
from txl_lightning.distributed.processes import run_on_all
from txl_lightning.distributed.ranks import Ranks, connect, environment, leaving, n_processes
from txl_lightning.errors import OptionError, Stopped, UserError, cores, require
from txl_lightning.files import write_json
from txl_lightning.runs.hardware import resolve_accelerator, resolve_precision, resolve_threads
from txl_lightning.runs.metrics import peak_memory, shown_units
from txl_lightning.runs.models import Model, always_carries_state, architecture, make_model, require_room
from txl_lightning.runs.trained import Checkpoint, naming, read_checkpoint
from txl_lightning.training.callbacks import (
    FiniteLoss,
    StopSignals,
    Trainer,
    custom_callbacks,
    naming_callbacks,
    requeue,
    states_of,
)
from txl_lightning.training.checkpointing import (
    Checkpoints,
    DurableCheckpoints,
    RandomState,
    Start,
    check_same_run,
    last_good,
    load_weights,
    prepare_directory,
    refuse_to_replace,
)
from txl_lightning.training.curves import (
    ContextCurves,
    ProgressBar,
    TrainingCurves,
    arm,
    lightning_loggers,
    start_loggers,
    upload_line,
)
from txl_lightning.training.module import LanguageModelModule
from txl_lightning.training.optimization import learning_rate


def run(options: Config, directory: Path) -> list[str]:
    """Train one model and return its metrics on one line, and how to upload an offline W&B run.

    Options without effect are printed at once.

    Raises:
        UserError: as `train` does.
    """
    for sentence in options_without_effect(options):
        print(sentence, flush=True)
    try:
        with leaving():
            metrics = train(options, directory)
    except Stopped as stopped:
        if stopped.signum == signal.SIGUSR1:
            requeue(options)
        raise
    units = [f"{split}/{unit}" for split in ("val", "test") for unit in ("nll", *shown_units(metrics, f"{split}/"))]
    shown = [f"{key} {metrics[key]:.4f}" for key in units]
    unknown = metrics["corpus"].get("unknown", {})
    shown += [f"{share:.1%} of {split} <unk>" for split, share in unknown.items() if any(unknown.values())]
    ended = f", ended by {metrics['ended_by']}" if "ended_by" in metrics else ""
    lines = [f"{', '.join(shown)} after {metrics['steps']} steps{ended}"]
    if metrics["weights_step"] != metrics["steps"]:
        lines[0] += f", with the weights of step {metrics['weights_step']}, the best on validation"
    if "wandb" in options.logger.names and (line := upload_line(directory)):
        lines.append(line)
    kept = ", checkpoints/best.ckpt" if options.checkpoint.enabled else ""
    return [*lines, f"lower is better; metrics.json, config.yaml, curves (validation.jsonl){kept} are in {directory}"]


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
    options = (  # option, value, default, why it is not read (None if it is)
        ("encoding", encoding.name, "relative", no_attention if recurrent else None),
        ("memory.start", memory.start, MemoryConfig.start, no_states),
        ("data.document_start", data.document_start, None, never_reset),
        ("initial_weights", config.initial_weights, None, "resume has weights too" if resumed else None),
    )
    return [f"{option}={value} has no effect: {why}" for option, value, usual, why in options if why and value != usual]


def train(config: Config, directory: Path | str) -> dict[str, Any]:
    """Train one model and evaluate its best weights on the validation and the test split.

    Writes `config.yaml`, `validation.jsonl`, `metrics.json`, `checkpoints/last.ckpt`, `previous.ckpt` and
    `best.ckpt`, and the logger's files into `directory`. With several `trainer.devices` the processes are
    started here, unless torchrun or SLURM started them.

    Returns:
        The contents of `metrics.json`.

    Raises:
        UserError: an option, the corpus or the checkpoint to resume from is not usable, a process failed, or the
            loss at the end is not finite.
        Stopped: a signal ended the run; the message names the checkpoint, if one was written.
    """
    config, directory = resolve_accelerator(config), Path(directory)
    check_config(config)
    refuse_to_replace(config, directory)
    copies = (3 if config.optimizer.name == "muon" else 4) * config.trainer.devices  # with gradients and moments
    require_room(architecture(config, 2**31), 4 * (copies if config.trainer.accelerator == "cpu" else 1))
    threads = torch.get_num_threads()
    try:
        if config.trainer.num_threads is not None:
            torch.set_num_threads(config.trainer.num_threads)
        if n_processes(config.trainer) > 1 and environment() is None:
            return _train_in_processes(config, directory)
        return train_rank(config, directory, connect(config.trainer))
    finally:
        torch.set_num_threads(threads)  # the next run in this process chooses among as many


def check_config(config: Config) -> None:
    """Validate the options of a training run before anything is prepared.

    Raises:
        OptionError: an option has a value that is not allowed.
    """
    check_values(config)  # before the model, whose memory may take its length from data.segment_len
    architecture(config, vocab_size=2**31)  # any vocabulary size: the corpus is not prepared yet
    check_logger(config.logger, ("wandb", "csv", "lightning", "tensorboard", "none"))
    target, arguments, loggers = config.logger._target_, config.logger.arguments, {*config.logger.names}
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
    rules = [  # option, whether its value is allowed, and which are
        ("logger._target_", target is None or "lightning" in loggers, "is of logger=lightning"),
        ("logger.arguments", not arguments or bool(loggers - {"wandb", "none"}), "is of logger=lightning"),
        ("data.batch_size", data.batch_size >= W * groups, enough),
        ("evaluation.batch_size", config.evaluation.batch_size >= W, f"must be at least the {W} processes"),
        ("checkpoint.keep_every_n_steps", checkpoint.enabled or kept is None, "needs checkpoint.enabled=true"),
        ("memory.gradient_segments", not (k and recurrent), longer),
        ("optimizer.min_lr", optimizer.min_lr <= optimizer.lr, "must be between 0 and optimizer.lr"),
        ("optimizer.ns_precision", not exact or optimizer.name == "muon", "is for optimizer=muon only"),
        ("trainer.accelerator", accelerator != "gpu" or n_gpus >= trainer.devices, visible),
    ]
    if accelerator == "cpu":
        rules += [("trainer.precision", precision != "16-mixed", "needs a GPU (bf16-mixed works without one)")]
    if accelerator == "mps":
        rules += [
            ("trainer.accelerator", torch.backends.mps.is_available(), "this machine has no Apple GPU"),
            ("trainer.accelerator", W == 1, f"is one device: {processes} must be 1"),
            ("trainer.precision", precision in ("32-true", "auto"), "must be 32-true with trainer.accelerator=mps"),
        ]
    for option, is_allowed, allowed in rules:
        require(is_allowed, option, attrgetter(option)(config), allowed)


def train_rank(config: Config, directory: Path, ranks: Ranks) -> dict[str, Any]:
    """Train and evaluate as one of the ranks; rank 0 writes `metrics.json`."""
    with StopSignals(ranks) as signals, quiet_libraries(), naming_callbacks():
        check_same_on_all_ranks(config, ranks)
        run = build(config, ranks.first(directory), ranks, signals)
        fit(run)
        metrics = {
            "steps": run.trainer.global_step,
            **({"ended_by": run.trainer.ended_by} if run.trainer.ended_by else {}),
            "tokens": run.curves.tokens,
            "seconds": round(run.curves.seconds, 2),
            "peak_memory_bytes": ranks.largest(peak_memory(run.trainer.strategy.root_device)),
            **test(run),
            "parameters": sum(parameter.numel() for parameter in run.module.parameters()),
            "processes": ranks.world_size,
        }
        for name, value in metrics.items():  # metrics.json cannot hold infinite numbers
            if isinstance(value, float) and not math.isfinite(value):
                raise UserError(f"{name}={value} after {metrics['steps']} steps: training diverged; lower optimizer.lr")
        if ranks.rank == 0:
            write_json(run.directory / "metrics.json", metrics, allow_nan=False)
            for logger in run.trainer.loggers:
                if isinstance(logger, WandbLogger):  # `final/val/nll` is of the best weights on the whole split
                    logger.experiment.summary.update({f"final/{name}": x for name, x in metrics.items()})
                    logger.experiment.finish()
    return metrics


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


@dataclass
class TrainingRun:
    """Everything that one rank needs to train, evaluate and write its results."""

    config: Config
    directory: Path
    data: StreamsDataModule
    module: LanguageModelModule
    trainer: Trainer
    curves: TrainingCurves
    checkpoints: Checkpoints | None
    start: Start


def build(config: Config, directory: Path, ranks: Ranks, signals: StopSignals) -> TrainingRun:
    """Build a run from its config and its start; create its directory.

    Precision and number of threads are resolved here: they depend on the checkpoint.

    Raises:
        OptionError: an option, the corpus or a checkpoint is not usable.
    """
    start = Start.of(config, directory, ranks)
    resumed_config = start.resumed.config if start.resumed else None
    config = ranks.first(resolve_precision(config, resumed_config))
    own_callbacks = custom_callbacks(config)  # before the corpus, whose preparation may take long
    made = lightning_loggers(config, directory, start.resumed) if ranks.rank == 0 else {}
    L.seed_everything(config.seed, verbose=False)
    data, vocabulary_given = _load_data(config, ranks, start)
    model = _build_model(config, data.corpus, ranks, start)
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    config = resolve_threads(config, model, resumed_config)
    if ranks.rank:  # initial weights are equal on all ranks; everything random after them is not
        torch.manual_seed(ranks.seed(config.seed))
    module = LanguageModelModule(model, config, data.corpus.vocabulary, evaluation_lengths(in_windows(config)), ranks)
    record = {
        "config": stored(config),
        "vocabulary": data.corpus.vocabulary.state_dict(),
        "vocabulary_given": vocabulary_given,
        "corpus": data.corpus.checksum,
    }
    if start.ended_by:
        ended = f"resume=auto: {start.ended_by} ended this run"
        ranks.report(f"{ended}, which is evaluated again; resume=CHECKPOINT trains on")
    curves, checkpoints = TrainingCurves(directory, config.trainer.log_every_n_steps, ranks), None
    if config.checkpoint.enabled:
        checkpoints = signals.checkpoints = Checkpoints(directory / "checkpoints", config, ranks, record, start.resumed)
    contexts = config.context_curve.every_n_steps is not None
    callbacks: list[Callback | None] = [  # callbacks that measure a step precede those that save and end it
        FiniteLoss(config, ranks, checkpoints),
        curves,
        ContextCurves(config, data.corpus.splits["valid"], directory, curves) if contexts else None,
        RandomState(ranks, config.seed),
        ProgressBar(curves) if config.trainer.progress_bar else None,
        *own_callbacks,
        checkpoints,
        signals,
    ]
    trainer = _build_trainer(config, directory, [callback for callback in callbacks if callback], start)
    trainer.loggers = [DummyLogger() for name in config.logger.names if name != "none"]  # rank 0 alone writes
    if ranks.rank == 0:
        prepare_directory(config, directory, start.resumed, data.corpus.vocabulary.tokenizer)
        trainer.loggers = start_loggers(config, directory, start.resumed, made, n_parameters)
        record["logger_ids"] = {name: str(logger.version) for name, logger in made.items()}
        record["wandb_id"] = next((x.experiment.id for x in trainer.loggers if isinstance(x, WandbLogger)), None)
    ranks.report(*opening_lines(config, data.corpus, n_parameters))
    return TrainingRun(config, directory, data, module, trainer, curves, checkpoints, start)


def opening_lines(config: Config, corpus: Corpus, n_parameters: int) -> list[str]:
    """Return the lines that a run begins with: model, data, device and steps."""
    data, trainer, vocabulary = config.data, config.trainer, corpus.vocabulary
    splits = [f"{split} {len(tokens):,}{corpus.unknown_share(split)}" for split, tokens in corpus.splits.items()]
    n_segments = config.memory.gradient_segments + 1
    segments = f"{data.batch_size:,} streams of {data.segment_len:,} tokens{f' × {n_segments}' * (n_segments > 1)}"
    devices = f"{n_processes(trainer)} × {trainer.accelerator}" if n_processes(trainer) > 1 else trainer.accelerator
    tokens = data.batch_size * data.segment_len * n_segments
    layers = f"{config.model.n_layer} layer{'s' * (config.model.n_layer != 1)}"
    return [
        f"model: {config.model.name}, {layers}, {n_parameters:,} parameters; {', '.join(arm(config))}",
        f"data: {corpus.name}, level {vocabulary.level}, vocabulary {len(vocabulary):,}; tokens: {', '.join(splits)}",
        f"device: {devices}, precision {trainer.precision}, {torch.get_num_threads()} of {cores()} CPU threads",
        f"steps: {trainer.max_steps:,}, each of {tokens:,} tokens ({segments})",
    ]


def _load_data(config: Config, ranks: Ranks, start: Start) -> tuple[StreamsDataModule, bool]:
    """Return the data, and whether its vocabulary is that of a checkpoint and not made of the text."""
    resumed, given = start.resumed, None
    if resumed and (config.data.level in KEPT_LEVELS or resumed.record.get("vocabulary_given")):
        given = resumed.vocabulary  # without file and training
    elif start.weights:
        given = _kept_vocabulary(config, start.weights, ranks)
    data = ranks.in_turn(lambda: make_data(config, given))
    corpus = data.corpus
    if given is not None and not resumed and any(corpus.unknown.values()):
        shares = ", ".join(f"{share:.1%} of {split}" for split, share in corpus.unknown.items())
        ranks.report(f"data={config.data.name}: what the vocabulary lacks is <unk>: {shares}")
    if config.data.level == "ids" and given is None and config.data.vocab_size is None:
        origin = getattr(config.data, "names", None) or f"the largest id of {corpus.name}, plus one"
        ranks.report(f"data.vocab_size={len(corpus.vocabulary)}: {origin}")
    return data, given is not None


def make_data(config: Config, vocabulary: Vocabulary | None = None) -> StreamsDataModule:
    """Return the data of a run, the corpus prepared; a training batch has all segments of a step.

    Args:
        config: config of the run.
        vocabulary: encode the corpus with this one instead of its own.

    Raises:
        UserError: the corpus cannot be loaded, or does not fit the options.
    """
    marked = config.memory.reset == "document"
    data = replace(config.data, segment_len=config.data.segment_len * (config.memory.gradient_segments + 1))
    return StreamsDataModule(data, in_windows(config).evaluation, training_lengths(config).extended, vocabulary, marked)


def _kept_vocabulary(config: Config, initial: Checkpoint, ranks: Ranks) -> Vocabulary:
    """Return the vocabulary of initial weights, which encodes the new text too."""
    vocabulary, level = initial.vocabulary, config.data.level
    allowed = f"was trained at level {vocabulary.level}: none of its tokens is one of level {level}"
    initial.require(vocabulary.level == level, allowed)
    of_vocabulary = ("vocab_size", "tokenizer", "min_count", "names")
    ignored = [f"data.{name}" for name in of_vocabulary if getattr(config.data, name, None) is not None]
    without = f"; {', '.join(ignored)} without effect" if ignored else ""
    kept = f"its vocabulary of {len(vocabulary):,} tokens is kept{without}"
    ranks.report(f"initial_weights={config.initial_weights}: {kept}")
    return replace(vocabulary, lenient=vocabulary.unknown >= 0)


def _build_model(config: Config, corpus: Corpus, ranks: Ranks, start: Start) -> Model:
    """Return the model, with the weights of its start."""
    model, found = make_model(config, len(corpus.vocabulary)), start.resumed or start.weights
    try:
        model.with_lengths(**evaluation_lengths(in_windows(config)).keywords())
    except OptionError as error:
        raise error.within("evaluation") from error
    if found is not None:
        load_weights(model, found, corpus.vocabulary)
    if start.resumed is not None:
        check_same_run(config, start.resumed, corpus.checksum)
        _check_steps(config, start.resumed.step, start, ranks)
    # Lightning converts the model after it has restored the weights, which float32 would round.
    return model.double() if config.trainer.precision == "64-true" else model


def _check_steps(config: Config, done: int, start: Start, ranks: Ranks) -> None:
    """Refuse a run without steps left, unless `resume=auto` evaluates it again; report a schedule that jumps."""
    assert start.resumed is not None
    max_steps, path = config.trainer.max_steps, start.resumed.path
    allowed = f"must be greater than the {done} steps of resume={path}"
    require(done < max_steps or start.continues, "trainer.max_steps", max_steps, allowed)
    if done > max_steps:
        nothing = "nothing to train, the run is evaluated again"
        ranks.report(f"resume=auto: {done} steps are done, trainer.max_steps={max_steps}: {nothing}")
    of_schedules = (start.resumed.config.trainer.max_steps, max_steps)
    before, now = (learning_rate(config.optimizer, done, n) for n in of_schedules)
    if done < max_steps and now != before and not start.ended_by:
        jumps = f"the learning rate jumps from {before:.2g} to {now:.2g}, the schedule's of {max_steps} steps"
        ranks.report(f"trainer.max_steps={max_steps}: after the {done} steps of resume={path} {jumps}")


def _build_trainer(config: Config, directory: Path, callbacks: list[Callback], start: Start) -> Trainer:
    options, resumed, restored = config.trainer, start.resumed, None
    if resumed is not None:  # as Lightning restores it: without states of other callbacks, of its own version
        states = states_of(callbacks, resumed.contents["callbacks"])
        restored = {**resumed.contents, "callbacks": states, "pytorch-lightning_version": L.__version__}
    n_visible = torch.cuda.device_count() if options.accelerator == "gpu" else options.devices
    gpus = [torch.device("cuda", rank % n_visible) for rank in range(options.devices)]
    several = DDPStrategy(parallel_devices=gpus if options.accelerator == "gpu" else None)
    trainer = Trainer(
        accelerator=options.accelerator,
        devices=min(options.devices, n_visible),
        num_nodes=options.num_nodes,
        strategy=several if n_processes(options) > 1 else "auto",
        plugins=[DurableCheckpoints(restored), environment() or LightningEnvironment()],
        precision=options.precision,  # type: ignore[arg-type]
        max_steps=resumed.step if resumed and start.ended_by else options.max_steps,
        val_check_interval=options.val_every_n_steps,
        check_val_every_n_epoch=None if options.val_every_n_steps else 1,
        limit_val_batches=in_windows(config).trainer.val_max_segments,
        log_every_n_steps=options.log_every_n_steps,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        default_root_dir=directory,
        callbacks=callbacks,
        logger=False,
    )
    trainer.ended_before = start.ended_by
    disable_signal_handlers(trainer)  # StopSignals handles them
    return trainer


def disable_signal_handlers(trainer: L.Trainer) -> None:
    """Keep Lightning from installing signal handlers, and from asking the other ranks for signals in every step.

    Both are private methods. The second, new in 2.6, makes the CPU wait for the GPU; it catches the error of a rank
    that died, after which the others wait for its gradients.
    """
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]


def fit(run: TrainingRun) -> None:
    """Train up to `trainer.max_steps`, and save the last state.

    Raises:
        UserError: the last state cannot be saved.
    """
    resumed = run.start.resumed
    try:
        with naming_callbacks():
            run.trainer.fit(run.module, datamodule=run.data, ckpt_path=resumed.path if resumed else None)
    except UserError:
        raise
    except Exception:
        if resumed is None or run.trainer.global_step > resumed.step:
            raise
        with naming(resumed.option, resumed.path):  # until a step is done, of what the checkpoint holds
            raise
    if run.checkpoints is not None:
        run.checkpoints.finish(run.trainer)


def test(run: TrainingRun) -> dict[str, Any]:
    """Score the best weights (the last without checkpoints) on the validation and the test split."""
    options, corpus, lengths = run.data.evaluation, run.data.corpus, run.module.evaluation_lengths
    weights, weights_step = "last", run.trainer.global_step
    if run.checkpoints is not None and run.checkpoints.best_path is not None:
        run.module.load_state_dict(read_checkpoint(run.checkpoints.best_path).contents["state_dict"])
        weights, weights_step = "best", run.checkpoints.best["step"]
    run.trainer.limit_val_batches = run.trainer.limit_test_batches = options.max_segments or 1.0
    run.trainer.validate(run.module, datamodule=run.data, verbose=False)
    run.trainer.test(run.module, datamodule=run.data, verbose=False)
    return {
        "weights": weights,
        "weights_step": weights_step,
        **run.module.metrics,
        "evaluation": {
            "protocol": lengths.protocol_word(always_carries_state(run.config)),
            **lengths.keywords(),
            "segment_len": options.segment_len,
            "streams_start": lengths.streams_start(run.config.memory.start),
            "batch_size": options.batch_size,
            "max_segments": options.max_segments,
        },
        "corpus": corpus.facts(),
    }


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Silence messages that do not apply here: devices found, advertisements, loaders without shuffling or workers."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    logging.getLogger("lightning.pytorch.callbacks").setLevel(logging.INFO)  # ModelSummary, EarlyStopping's verbose
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"lightning\.|torch\.jit", category=DeprecationWarning)
        warnings.filterwarnings("ignore", message=r".*LeafSpec.*")
        warnings.filterwarnings("ignore", message=r"GPU available but not used.*")  # trainer.accelerator=cpu was chosen
        yield


def _train_in_processes(config: Config, directory: Path) -> dict[str, Any]:
    options = config.trainer
    require(options.num_nodes == 1, "trainer.num_nodes", options.num_nodes, "needs torchrun or SLURM")
    # Prepare the corpus once; bad options end the run before the processes start. A resumed run needs no tokenizer:
    # each process takes that of the checkpoint.
    resumed = last_good(directory / "checkpoints")[0] if config.resume == "auto" else config.resume
    if resumed in WITHOUT_PATH or config.data.level not in KEPT_LEVELS:
        make_data(config)
    return run_on_all(_train_started_rank, plain(config), str(directory), processes=options.devices)


def _train_started_rank(config: dict[str, Any], directory: str) -> dict[str, Any]:
    return train(from_plain(config), directory)
