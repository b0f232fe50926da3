"""The module in a user's own Trainer: its arguments mean what Lightning's documentation says."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import (
    Checkpoint,
    LearningRateMonitor,
    ModelCheckpoint,
    OnExceptionCheckpoint,
)
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.tuner import Tuner
from torch.utils.data import DataLoader, TensorDataset

from tests.fixtures import Patch
from tests.training.small_run import csv_rows, evaluated, patch_module, trained
from txl_lightning import LanguageModelModule, load_trained
from txl_lightning.data.streams import Streams
from txl_lightning.errors import UserError, notice
from txl_lightning.evaluation.trained import read_file

RUN = ("model.dropout=0", "trainer.max_steps=6", "trainer.val_every_n_steps=6")
QUIET = {
    "accelerator": "cpu",
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "use_distributed_sampler": False,
    "num_sanity_val_steps": 0,
}
B, T, N = 4, 8, 6  # streams, segment, segments of an epoch
pytestmark = [  # what Lightning says to any of its users
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*ckpt_path.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists"),
]


def checkpoint() -> Path:
    return trained(*RUN) / "run/checkpoints/last.ckpt"


def new_module(**options: Any) -> LanguageModelModule:
    torch.manual_seed(1)
    return LanguageModelModule.load_from_checkpoint(checkpoint(), **options)


def streams(batch_size: int = B, segment_len: int = T) -> Streams:
    tokens = torch.arange(B * (N * T + 1)).mul(7).remainder(97).numpy()
    return Streams(tokens, batch_size, segment_len)


def make_trainer(folder: Path, **options: Any) -> L.Trainer:
    has_checkpoints = any(isinstance(x, Checkpoint) for x in options.get("callbacks", []))
    defaults = {"logger": False, "default_root_dir": folder}
    return L.Trainer(**{**QUIET, **defaults, "enable_checkpointing": has_checkpoints, **options})


def fit(
    folder: Path,
    module: LanguageModelModule | None = None,
    loader: Any = None,
    ckpt_path: Path | None = None,
    **options: Any,
) -> L.Trainer:
    """Train a module with a new Trainer, by default a new module on ordinary streams."""
    trainer = make_trainer(folder, **options)
    if module is None:
        module = new_module()
    if loader is None:
        loader = streams()
    trainer.fit(module, loader, ckpt_path=ckpt_path)
    return trainer


def saved(folder: Path, after: int, loader: Streams) -> Path:
    """Return a checkpoint of a new run after some steps."""
    keep = ModelCheckpoint(folder, every_n_train_steps=after, filename="saved")
    fit(
        folder,
        loader=loader,
        max_steps=after,
        callbacks=[keep],
    )
    return folder / "saved.ckpt"


class Rates(L.Callback):
    """Notes the learning rate of every step."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_before_optimizer_step(self, trainer: L.Trainer, module: Any, optimizer: Any) -> None:
        self.values.append(optimizer.param_groups[0]["lr"])


class Breaks(L.Callback):
    """Raises in the middle of a step, or at the start of a batch of training or validation; all count from 0."""

    def __init__(self, step: int = -1, batch: int = -1, validation_batch: int = -1) -> None:
        self.step = step
        self.batch = batch
        self.validation_batch = validation_batch

    def on_before_optimizer_step(self, trainer: L.Trainer, *_: Any) -> None:
        self.check(trainer.global_step, self.step)

    def on_train_batch_start(self, trainer: L.Trainer, *batch: Any) -> None:
        self.check(batch[2], self.batch)

    def on_validation_batch_end(self, trainer: L.Trainer, *batch: Any) -> None:
        self.check(batch[3], self.validation_batch)

    def check(self, number: int, last: int) -> None:
        if number == last:
            raise RuntimeError("broken off")


@pytest.fixture
def losses(monkeypatch: Patch) -> list[float]:
    """A list that gets the loss of every batch."""
    checkpoint()  # trained before
    values = []
    patch_module(
        monkeypatch,
        "scaled_loss",
        after=lambda module: values.append(float(module.loss)),
    )
    return values


# Steps and schedule


STEPS = [
    ({"max_epochs": 3}, 3 * N),
    ({"max_epochs": 3, "limit_train_batches": 4}, 3 * 4),
    ({"max_epochs": 2, "overfit_batches": 2}, 2 * 2),
    ({"max_epochs": 2, "accumulate_grad_batches": 2}, 2 * N // 2),
    ({"max_epochs": 3, "max_steps": 7}, 7),
]


@pytest.mark.parametrize(("options", "steps"), STEPS)
def test_a_trainer_trains_all_steps(tmp_path, options, steps):
    assert fit(tmp_path, **options).global_step == steps


@pytest.mark.parametrize(
    "options",
    [{"max_epochs": 5}, {"max_steps": 30}],
)
def test_the_schedule_is_the_trainers(tmp_path, options):
    """The checkpoint's run had 6 steps; a cosine over 30 is at a half after 15."""
    module = new_module()
    rates = Rates()
    fit(tmp_path, module, **options, callbacks=[rates])
    assert len(rates.values) == 30
    assert rates.values[15] == pytest.approx(module.config.optimizer.lr / 2)


def test_without_a_number_of_steps_the_rate_stays_and_a_line_says_so(tmp_path, capsys):
    notice.cache_clear()
    module = new_module()
    trainer = fit(
        tmp_path,
        module,
        max_epochs=-1,
        max_time={"seconds": 2},
    )
    assert trainer.optimizers[0].param_groups[0]["lr"] == module.config.optimizer.lr
    assert "no number of steps (max_steps or max_epochs)" in capsys.readouterr().err


def test_a_warm_up_longer_than_the_run_is_said(tmp_path, capsys):
    notice.cache_clear()
    module = new_module()
    module.config.optimizer.warmup_steps = 50
    fit(tmp_path, module, max_epochs=1)
    assert "optimizer.warmup_steps=50 is longer than the run" in capsys.readouterr().err


def test_the_rate_that_a_finder_suggests_is_trained_with(tmp_path):
    module = new_module()
    rates = Rates()
    options = {"callbacks": [rates], "enable_checkpointing": True}
    trainer = make_trainer(tmp_path, max_epochs=20, **options)
    found = Tuner(trainer).lr_find(module, streams(), num_training=40)
    trainer.fit(module, streams())
    assert rates.values[0] == module.lr == found.suggestion()
    assert module.tokens == 20 * N * B * T


# Loggers, results, checkpoints


def test_loggers_and_the_results_of_test_have_all_values(tmp_path):
    logger = CSVLogger(tmp_path, name="mine")
    options = {
        "logger": logger,
        "callbacks": [LearningRateMonitor()],
        "log_every_n_steps": 3,
    }
    trainer = make_trainer(tmp_path, max_epochs=2, **options)
    module = new_module()
    trainer.fit(module, streams(), streams())
    (tested,) = trainer.test(
        module,
        streams(),
        verbose=False,
    )
    (validated,) = trainer.validate(
        module,
        streams(),
        verbose=False,
    )
    assert tested["test/nll"] == module.metrics["test/nll"]
    assert validated["val/nll"] == module.metrics["val/nll"]
    folder = tmp_path / "mine/version_0"
    rows = csv_rows(folder / "metrics.csv")
    tokens = [float(row["tokens"]) for row in rows if row["train/nll"]]
    assert tokens == [step * B * T for step in (3, 6, 9, 12)]
    for name, steps in (("train/nll", "3 6 9 12"), ("val/nll", "6 12 12"), ("test/nll", "12")):
        assert [row["step"] for row in rows if row[name]] == steps.split()
    assert sum(bool(row["lr-Adam"]) for row in rows) == 4
    shown = (folder / "hparams.yaml").read_text()
    assert "warmup_steps: 0" in shown
    assert "version: " in shown


def test_every_checkpoint_of_a_users_callback_opens_everywhere(tmp_path):
    best = {"monitor": "val/nll", "save_weights_only": True}
    weights = ModelCheckpoint(tmp_path, filename="weights", **best)
    other = ModelCheckpoint(tmp_path, filename="all", every_n_train_steps=4)
    trainer = make_trainer(
        tmp_path,
        max_epochs=1,
        callbacks=[weights, other],
    )
    trainer.fit(new_module(), streams(), streams())
    for name, step in (("weights", 6), ("all", 4)):
        path = tmp_path / f"{name}.ckpt"
        assert load_trained(path).step == step
        assert evaluated(path, tmp_path / name, max_segments=1, num_threads=1)["step"] == step
        opened = io.BytesIO(path.read_bytes())
        LanguageModelModule.load_from_checkpoint(opened, weights_only=True)


def test_the_options_of_load_from_checkpoint_are_accepted(tmp_path):
    contents = read_file(checkpoint())
    del contents["state_dict"]["model.layers.0.attention.qkv.weight"]
    path = tmp_path / "lacks.ckpt"
    torch.save(contents, path)
    options = {"map_location": {"cuda:0": "cpu"}, "weights_only": True}
    with pytest.raises(UserError, match="Missing key"):
        LanguageModelModule.load_from_checkpoint(path, strict=True, **options)
    module = LanguageModelModule.load_from_checkpoint(path, strict=False, **options)
    assert module.device.type == "cpu"


# Resume


@pytest.mark.parametrize(
    "options", [{"max_epochs": 3}, {"max_steps": 12, "limit_train_batches": 4}]
)
@pytest.mark.parametrize("at", [2, 4, 6])
def test_a_run_resumes_where_it_was_also_after_an_error_in_a_step(tmp_path, losses, options, at):
    """Without dropout: the masks of the broken step were drawn."""
    fit(tmp_path, **options)
    expected = losses[at:]
    callbacks = [
        Breaks(step=at),
        OnExceptionCheckpoint(tmp_path, "broken"),
    ]
    with pytest.raises(RuntimeError, match="broken off"):
        fit(tmp_path, **options, callbacks=callbacks)
    losses.clear()
    fit(tmp_path, ckpt_path=tmp_path / "broken.ckpt", **options)
    assert losses == expected


OTHER_STREAMS = [
    (5, streams(), streams(2), "it was saved with 4 streams, now there are 2"),
    (7, streams(), streams(2), "it was saved with 4 streams, now there are 2"),
    (11, streams(2), streams(), "it was saved with 2 streams, now there are 4"),
    (1, streams(), streams(16), "it was saved with 4 streams, now there are 16"),
    (12, streams(2), streams(), ""),
    (5, streams(), streams(segment_len=2 * T), "it was saved before segment 5, not 2"),
]


@pytest.mark.parametrize(("after", "before", "now", "why"), OTHER_STREAMS)
def test_other_streams_resume_anywhere_in_an_epoch(tmp_path, after, before, now, why, capsys):
    """An epoch then has half, or twice, as many batches."""
    path = saved(tmp_path, after, before)
    trainer = fit(
        tmp_path,
        loader=now,
        ckpt_path=path,
        max_steps=after + 9,
    )
    assert trainer.global_step == after + 9
    assert why in capsys.readouterr().err


def test_a_resumed_run_draws_the_dropout_of_an_uninterrupted_one(tmp_path, losses):
    with_dropout = trained("model.dropout=0.2", *RUN[1:]) / "run/checkpoints/last.ckpt"
    losses.clear()
    keep = ModelCheckpoint(
        tmp_path,
        every_n_train_steps=4,
        filename="{step}",
        save_top_k=-1,
    )
    for path in (None, tmp_path / "step=4.ckpt"):
        module = LanguageModelModule.load_from_checkpoint(with_dropout)
        fit(
            tmp_path,
            module,
            ckpt_path=path,
            max_steps=10,
            callbacks=[keep],
        )
    assert losses[10:] == losses[4:10]


def test_a_resumed_run_follows_the_schedule_of_more_steps_at_once(tmp_path):
    path = saved(tmp_path, 6, streams())
    resumed = Rates()
    whole = Rates()
    fit(
        tmp_path,
        ckpt_path=path,
        max_steps=12,
        callbacks=[resumed],
    )
    fit(tmp_path, max_steps=12, callbacks=[whole])
    assert resumed.values == whole.values[6:]
    assert min(resumed.values) > 0


def test_a_checkpoint_within_an_accumulation_says_what_it_lacks(tmp_path, capsys):
    notice.cache_clear()
    callbacks = [
        Breaks(batch=4),
        OnExceptionCheckpoint(tmp_path, "broken"),
    ]
    with pytest.raises(RuntimeError, match="broken off"):
        fit(tmp_path, max_epochs=1, accumulate_grad_batches=3, callbacks=callbacks)
    assert "within an accumulation: the gradients of 1 batches are not" in capsys.readouterr().err


def test_a_broken_off_validation_leaves_nothing_to_the_next(tmp_path):
    module = new_module()

    def validated(**options):
        trainer = make_trainer(tmp_path, **options)
        (values,) = trainer.validate(
            module,
            streams(),
            verbose=False,
        )
        return values["val/nll"]

    expected = validated()
    with pytest.raises(RuntimeError, match="broken off"):
        validated(callbacks=[Breaks(validation_batch=3)])
    assert validated() == expected


# Optimizers


def with_sgd(kind: str, module: LanguageModelModule) -> Any:
    """Return an optimizer, with the schedule of a kind."""
    optimizer = torch.optim.SGD(
        module.parameters(),
        lr=0.1,
    )
    halves = torch.optim.lr_scheduler.StepLR(
        optimizer,
        1,
        gamma=0.5,
    )
    schedule = {"scheduler": halves}  # in every epoch
    if kind == "none":
        return optimizer
    if kind == "every second step":
        schedule |= {"interval": "step", "frequency": 2}
    if kind == "plateau":
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer,
            patience=0,
            threshold=100,
        )
        schedule = {"scheduler": plateau, "monitor": "val/nll"}
    return {"optimizer": optimizer, "lr_scheduler": schedule}


RATES = {
    "none": 0.1,
    "plateau": 1e-4,
    "epoch": 0.0125,
    "every second step": 0.1 / 512,
}


@pytest.mark.parametrize("kind", RATES)
def test_own_optimizers_and_schedules_work(tmp_path, monkeypatch, kind):
    module = new_module()
    monkeypatch.setattr(
        module,
        "configure_optimizers",
        lambda: with_sgd(kind, module),
    )
    trainer = make_trainer(tmp_path, max_steps=3 * N)
    trainer.fit(module, streams(), streams())
    assert trainer.global_step == 3 * N
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(RATES[kind])


def test_an_optimizer_may_score_a_batch_several_times(tmp_path, monkeypatch):
    module = new_module()
    optimizer = torch.optim.LBFGS(
        module.parameters(),
        lr=0.01,
        max_iter=3,
    )
    monkeypatch.setattr(module, "configure_optimizers", lambda: optimizer)
    fit(tmp_path, module, max_epochs=2)
    assert module.tokens == 2 * N * B * T


@pytest.mark.filterwarnings("ignore:.*returned `None`")
def test_no_optimizer_is_refused(tmp_path, monkeypatch):
    module = new_module()
    monkeypatch.setattr(module, "configure_optimizers", lambda: None)
    with pytest.raises(UserError, match=r"^configure_optimizers returned no optimizer"):
        fit(tmp_path, module, max_epochs=1)


class ByHand(LanguageModelModule):
    """Steps all its optimizers after each batch."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.manual_backward(super().training_step(batch, batch_idx))
        for optimizer in self.optimizers():
            optimizer.step()
            optimizer.zero_grad()


def test_two_optimizers_work_by_hand(tmp_path, monkeypatch):
    module = ByHand.load_from_checkpoint(checkpoint())
    module.automatic_optimization = False
    first, *others = module.parameters()
    optimizers = [
        torch.optim.SGD([first], 0.1),
        torch.optim.SGD(others, 0.1),
    ]
    monkeypatch.setattr(module, "configure_optimizers", lambda: optimizers)
    fit(tmp_path, module, max_epochs=2)
    assert module.tokens == 2 * N * B * T


class LargestGradient(L.Callback):
    """Keeps the largest norm of the gradients that a step is made with."""

    def __init__(self, order: float) -> None:
        self.order = order
        self.value = 0.0

    def on_before_zero_grad(self, trainer: L.Trainer, module: Any, optimizer: Any) -> None:
        gradients = [p.grad for p in module.parameters() if p.grad is not None]
        if gradients:
            norm = float(torch.nn.utils.get_total_norm(gradients, self.order))
            self.value = max(self.value, norm)


@pytest.mark.parametrize(
    ("algorithm", "order"),
    [("norm", 2.0), ("value", torch.inf)],
)
def test_the_trainers_clipping_counts(tmp_path, algorithm, order):
    largest = LargestGradient(order)
    options = {"gradient_clip_val": 1e-3, "gradient_clip_algorithm": algorithm}
    fit(
        tmp_path,
        max_epochs=1,
        **options,
        callbacks=[largest],
    )
    assert largest.value == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")  # a skipped first step
def test_a_gradient_scaler_of_the_trainer_skips_its_overflows(tmp_path):
    """16-mixed needs a GPU in Lightning, but its plugin does not; gradients times 2^60 are infinite."""
    scaler = torch.amp.GradScaler(
        "cpu",
        init_scale=2.0**60,
    )
    plugin = MixedPrecision("16-mixed", "cpu", scaler=scaler)
    module = new_module()
    fit(tmp_path, module, max_epochs=2, plugins=[plugin])
    assert scaler.get_scale() < 2.0**60
    assert bool(module.finite)


# Loaders


BATCHES = {
    "tuples": lambda batch: (batch.tokens, batch.targets),
    "dicts": lambda batch: {"tokens": batch.tokens, "targets": batch.targets},
    "batches": lambda batch: batch,
}


@pytest.mark.parametrize("kind", BATCHES)
def test_loaders_of_tuples_dicts_and_batches_are_accepted(tmp_path, losses, kind):
    data = [BATCHES[kind](batch) for batch in streams()]
    fit(
        tmp_path,
        loader=DataLoader(data, batch_size=None),
        max_epochs=2,
    )
    fit(tmp_path, max_epochs=2)
    assert losses[: 2 * N] == losses[2 * N :]


ONES = torch.ones(9, T).long()
OTHER_LOADERS = [
    (list(streams()), {}, r"DataLoader\(batch_size=1\): must be batch_size=None"),
    ([ONES], {"batch_size": None}, r"a batch is a Tensor: a loader yields Batch"),
    ([{"x": ONES}], {"batch_size": None}, r"a batch is a dict: a loader yields"),
    (TensorDataset(ONES, ONES), {"shuffle": True}, r"DataLoader\(shuffle=True\): must be False"),
]


@pytest.mark.parametrize(("data", "options", "words"), OTHER_LOADERS)
def test_other_loaders_are_refused_in_one_line(tmp_path, data, options, words):
    loader = DataLoader(data, **options)
    with pytest.raises(UserError, match=f"^{words}"):
        fit(tmp_path, loader=loader, max_epochs=1)
    with pytest.raises(UserError, match=f"^{words}"):
        make_trainer(tmp_path).validate(new_module(), loader, verbose=False)


@pytest.mark.parametrize(
    "loaders",
    [
        [streams(), streams()],
        {"a": streams(), "b": streams()},
    ],
)
def test_two_loaders_of_validation_are_refused_in_one_line(tmp_path, loaders):
    words = "^2 validation loaders: give one, and call validate for each further one$"
    with pytest.raises(UserError, match=words):
        make_trainer(tmp_path).validate(new_module(), loaders, verbose=False)
